#include "diagnostics/hang/torch_recorder.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "diagnostics/hang/proc_file.hpp"
#include "diagnostics/hang/torch_pickle.hpp"
#include "diagnostics/hang/torch_worker_server.hpp"

namespace ddp::diagnostics {
namespace {

using RankVariables = std::map<std::string, std::string>;

constexpr std::chrono::milliseconds kRankPatience{1'000};
// NCCL's watchdog looks at its pipe each second (TORCH_NCCL_COORD_CHECK_MILSEC).
constexpr std::chrono::milliseconds kAllPatience{4'000};
constexpr std::chrono::milliseconds kAllReserve{500};
constexpr std::chrono::milliseconds kFilePause{50};
// Applies to a dump that was not requested: a rank writes it when an operation has timed out, and ends soon after.
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

/// The path as the rank sees it.
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

/// Empty if the rank's user has no such file, or only part of one.
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

/// @return whether a process has the pipe open for reading
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
  timespec before{};  ///< when the existing file was written
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
    } catch (const Error& error) {  // it may not be complete yet
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

namespace {

using flight::FlightState;
using flight::FlightView;
using TraceJson = nlohmann::json;

constexpr std::size_t kMostNameBytes = 64;
constexpr std::size_t kMostUnfinished = 64;
constexpr std::size_t kMostMembers = 1U << 20U;

[[noreturn]] void refuse_trace(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading a dump of PyTorch's flight recorder",
               .cause = std::move(cause)}};
}

std::string printable_name(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return letter < ' ' || letter >= 0x7f; }, '?');
  return text.substr(0, kMostNameBytes);
}

/// Parses "[0, 1, 5]".
std::vector<int> parse_ranks(const std::string& text) {
  std::vector<int> ranks;
  for (std::size_t at = text.find_first_of("0123456789"); at != std::string::npos && ranks.size() < kMostMembers;) {
    int rank = 0;
    const auto [end, status] = std::from_chars(text.data() + at, text.data() + text.size(), rank);
    if (status != std::errc{}) refuse_trace("a rank in it is out of range");
    ranks.push_back(rank);
    at = text.find_first_of("0123456789", static_cast<std::size_t>(end - text.data()));
  }
  return ranks;
}

std::vector<int> members_of(const TraceJson& dump, const std::string& name, const std::string& description,
                            int world_size) {
  std::vector<int> members;
  if (const auto config = dump.find("pg_config"); config != dump.end() && config->contains(name))
    members = parse_ranks(config->at(name).at("ranks").get<std::string>());
  if (members.empty() && description == "default_pg") {
    members.resize(std::min(static_cast<std::size_t>(std::max(world_size, 0)), kMostMembers));
    std::iota(members.begin(), members.end(), 0);
  }
  return members;
}

FlightView::Group& group_named(const TraceJson& dump, const TraceJson& entry, const std::string& backend,
                               FlightView& view) {
  const auto name = entry.at("process_group").at(0).get<std::string>();
  const auto description = entry.at("process_group").at(1).get<std::string>();
  std::string shown = printable_name(fmt::format("{}:{}", backend, name));
  if (!description.empty() && description != "undefined") shown += " " + printable_name(description);
  const auto known = std::find_if(view.groups.begin(), view.groups.end(),
                                  [&](const FlightView::Group& each) { return each.name == shown; });
  if (known != view.groups.end()) return *known;
  FlightView::Group& group = view.groups.emplace_back();
  group.name = std::move(shown);
  group.backend = backend;
  group.members = members_of(dump, name, description, view.world_size);
  group.size = static_cast<int>(group.members.size());
  const auto own = std::find(group.members.begin(), group.members.end(), view.rank);
  if (own != group.members.end()) group.rank = static_cast<int>(own - group.members.begin());
  return group;
}

/// Elements, for operations in which all ranks have the same number.
std::uint64_t count_of(const std::string& operation, const TraceJson& entry) {
  if (operation != "all_reduce" && operation != "broadcast" && operation != "reduce") return 0;
  const TraceJson& inputs = entry.at("input_sizes");
  if (inputs.empty()) return 0;
  std::uint64_t count = 1;
  for (const TraceJson& size : inputs.at(0)) count *= size.get<std::uint64_t>();
  return count;
}

/// The other end in "send 1->2" or "recv 3<-0".
int peer_in(std::string_view text) {
  int peer = -1;
  for (const std::string_view arrow : {"->", "<-"}) {
    if (const std::size_t at = text.find(arrow); at != std::string_view::npos)
      std::from_chars(text.data() + at + arrow.size(), text.data() + text.size(), peer);
  }
  return peer;
}

double seconds_since(const TraceJson& entry, const char* name, std::int64_t now_ns) {
  const auto time = entry.find(name);
  if (time == entry.end() || !time->is_number_integer()) return -1;
  const auto at_ns = time->get<std::int64_t>();
  return at_ns <= 0 ? -1 : std::max(0.0, (static_cast<double>(now_ns) - static_cast<double>(at_ns)) * 1e-9);
}

void add_entry(const TraceJson& dump, const TraceJson& entry, std::int64_t now_ns, FlightView& view) {
  const auto profiled = entry.at("profiling_name").get<std::string>();  // "gloo:all_reduce", "nccl:send 1->2"
  const std::size_t colon = profiled.find(':');
  const std::string backend = colon == std::string::npos ? "torch" : printable_name(profiled.substr(0, colon));
  const std::string called = colon == std::string::npos ? profiled : profiled.substr(colon + 1);
  FlightView::Group& group = group_named(dump, entry, backend, view);
  FlightView::Call call;
  call.group = group.name;
  call.operation = printable_name(called.substr(0, called.find(' ')));
  call.transfer = entry.at("is_p2p").get<bool>();
  call.sequence = entry.at(call.transfer ? "p2p_seq_id" : "collective_seq_id").get<std::uint64_t>();
  call.peer = call.transfer ? peer_in(called) : -1;
  call.count = count_of(call.operation, entry);
  call.age_s = std::max(0.0, seconds_since(entry, "time_created_ns", now_ns));
  call.end_s = seconds_since(entry, "time_discovered_completed_ns", now_ns);
  // Gloo retires only what has ended. NCCL's watchdog also retires what has timed out.
  const bool retired = entry.at("retired").get<bool>() && backend != "nccl";
  const bool done = retired || entry.at("state").get<std::string>() == "completed";
  call.state = done ? FlightState::done : FlightState::started;
  if (!call.transfer) group.last_queued = std::max(group.last_queued, call.sequence);
  ++view.recorded;
  if (done) ++view.finished;
  if (!done && view.unfinished.size() < kMostUnfinished) view.unfinished.push_back(call);
  if (!view.last || call.age_s <= view.last->age_s) view.last = std::move(call);
}

}  // namespace

void add_torch_trace(std::string_view dump, std::int64_t now_ns, FlightView& view) {
  try {
    const TraceJson document = dump.starts_with('{') ? TraceJson::parse(dump) : TraceJson::parse(pickle_to_json(dump));
    if (!document.is_object() || !document.at("version").get<std::string>().starts_with("2."))
      refuse_trace("it is of another version than 2");
    if (!document.contains("entries")) return;  // nothing was recorded
    for (const TraceJson& entry : document.at("entries")) add_entry(document, entry, now_ns, view);
    std::stable_sort(view.unfinished.begin(), view.unfinished.end(),
                     [](const FlightView::Call& a, const FlightView::Call& b) { return a.age_s > b.age_s; });
  } catch (const TraceJson::exception& error) {
    refuse_trace(fmt::format("it is not as expected: {}", printable_name(error.what())));
  }
}

namespace {

namespace fs = std::filesystem;

/// For Linux before 5.6 and containers without openat2(2): follows no links at all.
base::UniqueFd open_without_links(int root, const fs::path& path) {
  base::UniqueFd at{::openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  for (const fs::path& name : path.relative_path()) {
    if (name == "." || name.empty()) continue;
    if (!at || name == "..") return {};
    struct stat facts {};
    at.reset(::openat(at.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!at || ::fstat(at.get(), &facts) != 0 || S_ISLNK(facts.st_mode)) return {};
  }
  return at;
}

base::UniqueFd find_in_root(int root, const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  base::UniqueFd found{static_cast<int>(::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how))};
  if (!found && (errno == ENOSYS || errno == EPERM)) return open_without_links(root, path);
  return found;
}

/// Turns a path from the working directory into one from the root; empty if the directory is outside the root.
std::string from_root(const std::string& process, const std::string& path) {
  if (path.starts_with('/')) return path;
  std::error_code failure;
  const std::string root = fs::read_symlink(process + "/root", failure).string();
  const std::string folder = failure ? std::string{} : fs::read_symlink(process + "/cwd", failure).string();
  if (failure || folder.empty()) return {};
  const std::string prefix = root == "/" ? std::string{} : root;
  if (!folder.starts_with(prefix + '/')) return {};
  return fmt::format("{}/{}", folder.substr(prefix.size()), path);
}

}  // namespace

base::UniqueFd open_rank_file(const std::string& proc, pid_t pid, const std::string& path, mode_t type, int flags) {
  const std::string process = fmt::format("{}/{}", proc, pid);
  const std::string absolute = from_root(process, path);
  const base::UniqueFd root{::open((process + "/root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
  struct stat owner {};
  struct stat facts {};
  if (absolute.empty() || !root || ::stat(process.c_str(), &owner) != 0) return {};
  // checked before it is opened: opening a device may already have an effect
  const base::UniqueFd found = find_in_root(root.get(), absolute);
  if (!found || ::fstat(found.get(), &facts) != 0) return {};
  if ((facts.st_mode & S_IFMT) != type || facts.st_uid != owner.st_uid) return {};
  return base::UniqueFd{
      ::open(fmt::format("/proc/self/fd/{}", found.get()).c_str(), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
}

}  // namespace ddp::diagnostics
