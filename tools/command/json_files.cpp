#include "command/json_files.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "cli/exit_error.hpp"

namespace ddp::tools {

namespace fs = std::filesystem;

namespace {

// The largest ring of a flight recorder makes some 70 MB.
constexpr std::uintmax_t kLargestFile = 256U << 20U;

}  // namespace

std::string one_folder(const std::vector<std::string>& words, const std::string& hint) {
  if (words.size() > 1) {
    throw cli::UsageError{cli::kReadingCommandLine, fmt::format("'{}' is one folder too many", words[1]),
                          "give one folder"};
  }
  if (words.empty() || words.front().empty()) {
    throw cli::UsageError{cli::kReadingCommandLine, "no folder is given", hint};
  }
  return words.front();
}

std::vector<fs::path> list_json_files(const std::string& folder, const std::string& hint) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    std::error_code no_file;
    if (each->path().extension() == ".json" && each->is_regular_file(no_file)) files.push_back(each->path());
  }
  if (error) throw base::system_error(fmt::format("reading the folder '{}'", folder), error.value(), hint);
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_json_file(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (!error && size > kLargestFile) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading '{}'", path.string()),
                 .cause = fmt::format("it has {} MiB; ranks write no more than {}", size >> 20U, kLargestFile >> 20U)}};
  }
  auto text = base::read_file(path.string());
  if (!text) throw base::system_error(fmt::format("reading '{}'", path.string()), errno);
  return std::move(*text);
}

}  // namespace ddp::tools
