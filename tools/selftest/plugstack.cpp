#include "selftest/plugstack.hpp"

#include <glob.h>

#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

namespace ddp::selftest {
namespace {

constexpr int kDeepest = 16;  // of files that include each other
constexpr std::string_view kHelper = "helper=";

std::vector<std::filesystem::path> matching(const std::string& pattern) {
  std::vector<std::filesystem::path> files;
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return files;
}

void read_into(const std::filesystem::path& file, int depth, Plugstack& stack) {
  std::ifstream stream(file);
  if (!stream || depth > kDeepest) {
    stack.unreadable.push_back(file);
    return;
  }
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string kind;
    std::string path;
    words >> kind >> path;
    if (kind == "include") {
      if (!path.starts_with('/')) path = (file.parent_path() / path).string();  // as Slurm does
      // A pattern without files is no error to Slurm.
      for (const auto& included : matching(path)) read_into(included, depth + 1, stack);
      std::error_code ignored;
      if (const auto folder = std::filesystem::path(path).parent_path(); !std::filesystem::exists(folder, ignored))
        stack.unreadable.push_back(folder);
    } else if (kind == "optional" || kind == "required") {
      if (std::filesystem::path(path).filename() != "spank_ddp.so") continue;
      PluginLine found{.file = file, .plugin = path};
      for (std::string word; words >> word;) {
        if (word.starts_with(kHelper)) found.helper = word.substr(kHelper.size());
      }
      stack.lines.push_back(std::move(found));
    }
  }
}

}  // namespace

Plugstack read_plugstack(const std::filesystem::path& file) {
  Plugstack stack;
  read_into(file, 0, stack);
  return stack;
}

}  // namespace ddp::selftest
