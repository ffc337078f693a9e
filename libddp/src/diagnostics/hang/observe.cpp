#include "diagnostics/hang/observe.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "base/library_thread.hpp"
#include "base/message.hpp"
#include "base/unique_fd.hpp"
#include "diagnostics/hang/nccl_ras.hpp"
#include "diagnostics/hang/proc_file.hpp"
#include "diagnostics/hang/torch_recorder.hpp"
#include "diagnostics/stacks/proc_stack.hpp"
#include "flight/flight_view.hpp"

namespace ddp::diagnostics {
namespace {

// Pages read from disk per second: programs that start read hundreds for a moment.
constexpr double kSwapping = 20;
constexpr std::chrono::seconds kSlowReading{1};

struct Sample {
  ProcStat stat;
  std::string call;
  std::string kernel;
  std::chrono::steady_clock::time_point time;

  bool same_place(const Sample& other) const {
    return stat.state == other.stat.state && call == other.call && kernel == other.kernel;
  }
};

Sample take_sample(const std::string& proc, pid_t pid) {
  return {.stat = read_stat(proc, pid),
          .call = read_system_call(proc, pid),
          .kernel = read_kernel_function(proc, pid),
          .time = std::chrono::steady_clock::now()};
}

bool has_moved(const std::optional<flight::FlightView>& before, const std::optional<flight::FlightView>& after) {
  if (!before || !after) return false;
  return before->recorded != after->recorded || before->unfinished.size() != after->unfinished.size();
}

void conclude(RankFacts& rank, const std::vector<Sample>& samples) {
  const Sample& first = samples.front();
  const Sample& last = samples.back();
  rank.state = last.stat.state;
  rank.call = last.call;
  rank.kernel = last.kernel;
  rank.steady = std::all_of(samples.begin(), samples.end(), [&](const Sample& each) { return each.same_place(last); });
  const double seconds = std::chrono::duration<double>(last.time - first.time).count();
  if (last.stat.state == 'X' || seconds <= 0) return;
  const auto ticks = static_cast<double>(last.stat.ticks - first.stat.ticks);
  rank.cores = ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)) / seconds;
  rank.swaps = static_cast<double>(last.stat.major_faults - first.stat.major_faults) / seconds >= kSwapping;
}

}  // namespace

HostFacts observe_ranks(const std::string& proc, const std::string& host, const std::vector<FoundRank>& ranks,
                        const Looks& looks, std::atomic<pid_t>* reads) {
  HostFacts facts{.host = host};
  std::vector<std::chrono::steady_clock::duration> taken(ranks.size());
  const auto timed = [&](std::size_t i, pid_t pid, const auto& read) {
    if (reads != nullptr) *reads = pid;
    const auto start = std::chrono::steady_clock::now();
    read();
    taken[i] += std::chrono::steady_clock::now() - start;
    if (reads != nullptr) *reads = 0;
  };
  std::vector<std::vector<Sample>> samples(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    RankFacts& rank = facts.ranks.emplace_back();
    rank.rank = ranks[i].identity.rank;
    rank.world_size = ranks[i].identity.world_size;
    rank.host = host;
    timed(i, ranks[i].pid, [&] {
      rank.pid = below_shells(proc, ranks[i].pid);
      rank.program = read_program(proc, rank.pid);
      rank.links_libddp = maps_library(proc, rank.pid, "libddp.so");
      rank.flight = flight::view_flight(proc, rank.pid);
    });
  }
  for (int look = 0; look < looks.count; ++look) {
    if (look > 0) std::this_thread::sleep_for(looks.pause);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      timed(i, facts.ranks[i].pid, [&] { samples[i].push_back(take_sample(proc, facts.ranks[i].pid)); });
    }
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    RankFacts& rank = facts.ranks[i];
    conclude(rank, samples[i]);
    timed(i, rank.pid, [&] {
      auto view = flight::view_flight(proc, rank.pid);
      rank.moves = has_moved(rank.flight, view);
      rank.flight = std::move(view);
    });
    if (taken[i] < kSlowReading) continue;
    facts.notes.push_back(
        fmt::format("reading process {} took {:.1f} s", rank.pid, std::chrono::duration<double>(taken[i]).count()));
  }
  return facts;
}

LocalObservation observe_host(const StatusTarget& target, const Looks& looks, Deadline deadline) {
  const auto reads = std::make_shared<std::atomic<pid_t>>(0);
  const auto look = [target, looks, deadline, reads, user = ::geteuid()] {
    const std::string proc = "/proc";
    const std::vector<FoundRank> ranks = ProcessTable::read(proc).ranks_of(target, user);
    LocalObservation found{.facts = observe_ranks(proc, base::host_name(), ranks, looks, reads.get()), .whole = false};
    ask_torch(proc, found.facts, deadline);
    ask_nccl(proc, found.facts, deadline);
    if (!ranks.empty()) {
      const RankIdentity& one = ranks.front().identity;
      found.whole =
          one.world_size > 0 && one.world_size <= std::max<int>(one.local_size, static_cast<int>(ranks.size()));
    }
    return found;
  };
  if (auto found = base::abandonable_call(look, deadline)) return std::move(*found);
  const pid_t slow = *reads;
  throw Error{{.code = ErrorCode::timeout,
               .attempted = slow == 0 ? std::string("reading /proc") : fmt::format("reading /proc/{}", slow),
               .cause = "a file there did not answer in time",
               .native = "ETIMEDOUT",
               .hint = fmt::format("{} hangs in the kernel, likely on a file system: ps -eo pid,stat,wchan shows D",
                                   slow == 0 ? std::string("a process") : fmt::format("process {}", slow))}};
}

struct RankObserver::Shared {
  base::WakeEvent ready;
  std::mutex mutex;  ///< for what follows
  std::optional<HostFacts> facts;
};

RankObserver::RankObserver(std::vector<FoundRank> ranks, std::string host, Deadline deadline)
    : deadline_(deadline), host_(std::move(host)), shared_(std::make_shared<Shared>()) {
  base::start_thread([shared = shared_, name = host_, found = std::move(ranks), deadline] {
    HostFacts facts{.host = name};
    try {
      facts = observe_ranks("/proc", name, found, {});
      ask_torch("/proc", facts, deadline);
      ask_nccl("/proc", facts, deadline);
    } catch (const std::exception& error) {
      facts.notes.emplace_back(error.what());
    }
    const std::lock_guard lock(shared->mutex);
    shared->facts = std::move(facts);
    shared->ready.ring();
  }).detach();
}

int RankObserver::fd() const { return shared_->ready.fd(); }

std::optional<HostFacts> RankObserver::take() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->facts) return std::move(shared_->facts);
  if (!deadline_.expired()) return std::nullopt;
  return HostFacts{.host = host_, .notes = {"/proc did not answer in time: ps -eo pid,stat,wchan shows D"}};
}

// Facts of a host on their way to the process that judges the job.

Bytes encode(const HostFacts& facts) { return base::encode(facts); }

HostFacts decode_host_facts(std::span<const std::byte> bytes) { return base::decode<HostFacts>(bytes); }

}  // namespace ddp::diagnostics
