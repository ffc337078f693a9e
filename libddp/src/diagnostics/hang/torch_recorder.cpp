#include "diagnostics/hang/torch_recorder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/unique_fd.hpp"
#include "diagnostics/hang/proc_file.hpp"
#include "diagnostics/hang/rank_file.hpp"
#include "diagnostics/hang/torch_trace.hpp"
#include "diagnostics/hang/torch_worker_server.hpp"

namespace ddp::diagnostics {
namespace {

using RankVariables = std::map<std::string, std::string>;

constexpr std::chrono::milliseconds kRankPatience{1'000};
// NCCL's watchdog looks at its pipe each second (TORCH_NCCL_COORD_CHECK_MILSEC).
constexpr std::chrono::milliseconds kAllPatience{4'000};
constexpr std::chrono::milliseconds kAllReserve{500};
constexpr std::chrono::milliseconds kFilePause{50};
// Of a dump that was not asked for: a rank writes it when an operation has timed out, and ends soon after.
constexpr std::int64_t kFreshSeconds = 30;
constexpr off_t kMostFileBytes = off_t{32} << 20U;

std::int64_t wall_clock_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string first_of(const RankVariables& variables, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto found = variables.find(name); found != variables.end() && !found->second.empty())
      return found->second;
  }
  return {};
}

/// As the rank sees it.
std::string dump_path(const RankFacts& rank, const RankVariables& variables) {
  std::string prefix = first_of(variables, {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"});
  if (prefix.empty()) {
    const std::string cache = first_of(variables, {"XDG_CACHE_HOME"});
    prefix = (cache.empty() ? first_of(variables, {"HOME"}) + "/.cache" : cache) + "/torch/comm_lib_trace_rank_";
  }
  return prefix + std::to_string(rank.rank);
}

struct DumpFile {
  std::string content;
  timespec written{};
};

/// Nothing where the rank's user has no such file, or not a whole one.
std::optional<DumpFile> read_dump(const std::string& proc, pid_t pid, const std::string& path) {
  struct stat file {};
  const base::UniqueFd fd = open_rank_file(proc, pid, path, S_IFREG, O_RDONLY);
  if (!fd || ::fstat(fd.get(), &file) != 0 || file.st_size <= 0 || file.st_size > kMostFileBytes) return std::nullopt;
  DumpFile dump{.content = std::string(static_cast<std::size_t>(file.st_size), '\0'), .written = file.st_mtim};
  std::size_t size = 0;
  while (size < dump.content.size()) {
    const ssize_t got = ::read(fd.get(), dump.content.data() + size, dump.content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    size += static_cast<std::size_t>(got);
  }
  return dump;
}

bool same_time(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

/// @return whether a process reads it
bool write_to_pipe(const std::string& proc, pid_t pid, const std::string& path) {
  const base::UniqueFd fd = open_rank_file(proc, pid, path, S_IFIFO, O_WRONLY);
  return fd && ::write(fd.get(), "1\n", 2) == 2;
}

void take_dumps(RankFacts& rank, const std::vector<std::string>& dumps) {
  flight::FlightView view;
  view.pid = rank.pid;
  view.rank = rank.rank;
  view.world_size = rank.world_size;
  for (const std::string& dump : dumps) add_torch_trace(dump, wall_clock_ns(), view);
  rank.flight_source = FlightSource::torch;
  rank.flight.reset();
  if (!view.groups.empty()) rank.flight = std::move(view);
}

bool tells_nothing(const RankFacts& rank) {
  return !rank.flight || (rank.flight->groups.empty() && rank.flight->phase != flight::FlightPhase::wiring_up);
}

/// A rank that has been asked for a dump.
struct Asked {
  RankFacts* rank;
  std::string path;
  timespec before{};  ///< when the file that was there was written
};

class TorchRanks {
 public:
  TorchRanks(const std::string& proc, HostFacts& facts, Deadline deadline)
      : proc_(proc), facts_(facts), deadline_(deadline) {}

  void ask(RankFacts& rank) {
    rank.flight_source = FlightSource::torch_unread;
    const bool stopped = rank.state == 'T' || rank.state == 't';
    if (!stopped && ask_server(rank)) return;
    const RankVariables variables = read_environment(proc_, rank.pid);
    const std::string path = dump_path(rank, variables);
    const auto there = read_dump(proc_, rank.pid, path);
    const std::string pipe = first_of(variables, {"TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"});
    if (!stopped && !pipe.empty() && write_to_pipe(proc_, rank.pid, fmt::format("{}{}.pipe", pipe, rank.rank))) {
      asked_.push_back({.rank = &rank, .path = path, .before = there ? there->written : timespec{}});
    } else if (there) {
      take_fresh(rank, path, *there);
    }
  }

  void collect() {
    while (!asked_.empty()) {
      const bool last = deadline_.expired();
      std::erase_if(asked_, [&](const Asked& each) { return collected(each, last); });
      if (last) break;
      if (!asked_.empty()) std::this_thread::sleep_for(kFilePause);
    }
    for (const Asked& each : asked_)
      note(*each.rank, "has a pipe that asks for a dump of PyTorch's flight recorder, but has written none");
  }

 private:
  void note(const RankFacts& rank, const std::string& text) {
    facts_.notes.push_back(fmt::format("rank {} {}", rank.rank, text));
  }

  bool ask_server(RankFacts& rank) {
    const std::string socket = find_worker_server(proc_, rank.pid);
    if (socket.empty()) return false;
    try {
      take_dumps(rank, ask_worker_server(socket, earlier(deadline_, Deadline::after(kRankPatience))));
      return true;
    } catch (const Error& error) {
      note(rank, error.what());
      return false;
    }
  }

  void take_fresh(RankFacts& rank, const std::string& path, const DumpFile& dump) {
    const std::int64_t age_s = wall_clock_ns() / 1'000'000'000 - dump.written.tv_sec;
    const double up_s =
        static_cast<double>(read_stat(proc_, rank.pid).start_ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
    timespec since_boot{};
    ::clock_gettime(CLOCK_BOOTTIME, &since_boot);
    if (age_s > kFreshSeconds || static_cast<double>(since_boot.tv_sec) - up_s < static_cast<double>(age_s)) return;
    try {
      take_dumps(rank, {dump.content});
      note(rank, fmt::format("has written {} {} s ago", path, age_s));
    } catch (const Error& error) {
      note(rank, fmt::format("{}: {}", path, error.what()));
    }
  }

  bool collected(const Asked& each, bool last) {
    const auto dump = read_dump(proc_, each.rank->pid, each.path);
    if (!dump || same_time(dump->written, each.before)) return false;
    try {
      take_dumps(*each.rank, {dump->content});
      return true;
    } catch (const Error& error) {  // it may not have all of it yet
      if (last) note(*each.rank, fmt::format("{}: {}", each.path, error.what()));
      return last;
    }
  }

  const std::string& proc_;
  HostFacts& facts_;
  const Deadline deadline_;
  std::vector<Asked> asked_;
};

}  // namespace

void ask_torch(const std::string& proc, HostFacts& facts, Deadline deadline) {
  TorchRanks ranks{proc, facts, earlier(Deadline{deadline.when() - kAllReserve}, Deadline::after(kAllPatience))};
  for (RankFacts& rank : facts.ranks) {
    if (rank.state == 'X' || rank.state == 'Z' || !tells_nothing(rank)) continue;
    if (maps_library(proc, rank.pid, "libtorch_cpu.so")) ranks.ask(rank);
  }
  ranks.collect();
}

}  // namespace ddp::diagnostics
