#include "flight/dump_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "command/json_files.hpp"

namespace ddp::tools::flight {
namespace {

namespace fs = std::filesystem;

// What clocks of hosts may differ.
constexpr std::int64_t kClocksDiffer = 60'000'000'000;

std::string job_of(const RankDump& dump) {
  return dump.attempt == 0 ? dump.job : fmt::format("{}, attempt {}", dump.job, dump.attempt);
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
  const auto files = list_json_files(path, "give the folder that DDP_FLIGHT_DIR named");
  std::vector<RankDump> dumps;
  std::vector<std::string> unreadable;
  for (const fs::path& file : files) {
    try {
      dumps.push_back(parse_rank_dump(read_json_file(file), file.filename().string()));
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
               .hint = "ranks write them where DDP_FLIGHT_DIR says, when a process group fails"}};
}

}  // namespace ddp::tools::flight
