#include "flight/dump_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/system_error.hpp"

namespace ddp::tools::flight {
namespace {

namespace fs = std::filesystem;

// The largest ring makes some 70 MB.
constexpr std::uintmax_t kLargestFile = 256U << 20U;
// What clocks of hosts may differ.
constexpr std::int64_t kClocksDiffer = 60'000'000'000;

std::string job_of(const RankDump& dump) {
  return dump.attempt == 0 ? dump.job : fmt::format("{}, attempt {}", dump.job, dump.attempt);
}

std::string read_file(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (!error && size > kLargestFile) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading '{}'", path.string()),
                 .cause = fmt::format("it has {} MiB; no dump has more than {}", size >> 20U, kLargestFile >> 20U),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) throw base::system_error(fmt::format("reading '{}'", path.string()), errno);
  return text;
}

}  // namespace

DumpFolder choose_job(std::vector<RankDump> dumps) {
  DumpFolder folder;
  if (dumps.empty()) return folder;
  std::stable_sort(dumps.begin(), dumps.end(),
                   [](const RankDump& a, const RankDump& b) { return a.written_ns > b.written_ns; });
  const std::string job = job_of(dumps.front());
  const std::int64_t begun = dumps.front().begun_ns;
  folder.job = job;
  std::map<int, RankDump> by_rank;
  for (RankDump& dump : dumps) {
    const auto used = by_rank.find(dump.rank);
    if (job_of(dump) != job) {
      folder.left_out.push_back(fmt::format("'{}': it is of {}, not of {}", dump.file, job_of(dump), job));
    } else if (dump.written_ns < begun - kClocksDiffer) {
      folder.left_out.push_back(
          fmt::format("'{}': it is of an earlier job, which had ended before this one began", dump.file));
    } else if (used != by_rank.end()) {
      folder.left_out.push_back(
          fmt::format("'{}': '{}' is a later dump of rank {}", dump.file, used->second.file, dump.rank));
    } else {
      by_rank.emplace(dump.rank, std::move(dump));
    }
  }
  for (auto& [rank, dump] : by_rank) folder.dumps.push_back(std::move(dump));
  return folder;
}

DumpFolder read_dump_folder(const std::string& path) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator each(path, error), end; !error && each != end; each.increment(error)) {
    std::error_code no_file;
    if (each->path().extension() == ".json" && each->is_regular_file(no_file)) files.push_back(each->path());
  }
  if (error) {
    throw base::system_error(fmt::format("reading the folder '{}'", path), error.value(),
                             "give the folder that DDP_FLIGHT_DIR named");
  }
  std::sort(files.begin(), files.end());
  std::vector<RankDump> dumps;
  std::vector<std::string> unreadable;
  for (const fs::path& file : files) {
    try {
      dumps.push_back(parse_rank_dump(read_file(file), file.filename().string()));
    } catch (const Error& problem) {
      unreadable.push_back(fmt::format("'{}': {}", file.filename().string(), problem.cause()));
    }
  }
  DumpFolder folder = choose_job(std::move(dumps));
  folder.left_out.insert(folder.left_out.end(), unreadable.begin(), unreadable.end());
  if (!folder.dumps.empty()) return folder;
  throw Error{{.code = ErrorCode::not_found,
               .attempted = fmt::format("looking for dumps in '{}'", path),
               .cause = unreadable.empty() ? "no file there is called *.json"
                                           : fmt::format("none can be used; {}", unreadable.front()),
               .native = {},
               .ranks = {},
               .hint = "ranks write them where DDP_FLIGHT_DIR says, when a process group fails"}};
}

}  // namespace ddp::tools::flight
