#include "world/inherited_rank.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "flight/flight_window.hpp"

namespace ddp::world {
namespace {

constexpr int kMostAncestors = 100;

/// What tells a source's ranks, and its jobs, from one another.
std::span<const std::string_view> identity_of(LaunchSource source) {
  static constexpr std::array<std::string_view, 2> kPmix{"PMIX_NAMESPACE", "PMIX_RANK"};
  static constexpr std::array<std::string_view, 3> kPmi2{"PMI_FD", "PMI_JOBID", "PMI_RANK"};
  static constexpr std::array<std::string_view, 6> kTorchrun{
      "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"};
  switch (source) {
    case LaunchSource::pmix: return kPmix;
    case LaunchSource::pmi2: return kPmi2;
    case LaunchSource::torchrun: return kTorchrun;
    case LaunchSource::openmpi:
    case LaunchSource::slurm:
    case LaunchSource::single: break;  // one rank without a place that could be taken
  }
  return {};
}

/// 0 where that is not to be seen.
pid_t parent_of(const std::string& proc, pid_t pid) {
  std::ifstream status(fmt::format("{}/{}/status", proc, pid));
  for (std::string word; status >> word;) {
    pid_t parent = 0;
    if (word == "PPid:" && status >> parent) return parent;
  }
  return 0;
}

/// Whether a process began with the same values. What it has set itself since is not to be seen.
bool began_alike(const std::string& proc, pid_t pid, const base::Environment& environment,
                 std::span<const std::string_view> names) {
  std::ifstream file(fmt::format("{}/{}/environ", proc, pid));
  std::map<std::string, std::string, std::less<>> values;
  for (std::string entry; std::getline(file, entry, '\0');) {
    const auto equals = entry.find('=');
    if (equals != std::string::npos) values.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return !values.empty() && std::ranges::all_of(names, [&](std::string_view name) {
    const auto found = values.find(name);
    const auto own = environment.raw(name);
    return found == values.end() ? !own.has_value() : own == found->second;
  });
}

[[noreturn]] void refuse(pid_t ancestor, const flight::FlightView& rank) {
  throw Error{
      {.code = ErrorCode::invalid_argument,
       .attempted = "joining the job",
       .cause = fmt::format("process {} was started by process {}, which is rank {} of {} in it already, and has "
                            "inherited that rank's environment",
                            ::getpid(), ancestor, rank.rank, rank.world_size),
       .ranks = {rank.rank},
       .hint = "let the rank itself do what needs the job; what it starts can be a job of its own with "
               "DDP_LAUNCH=single, or under ddprun"}};
}

}  // namespace

void refuse_inherited_rank(const base::Environment& environment, LaunchSource source, const std::string& proc) {
  const auto names = identity_of(source);
  if (names.empty()) return;
  pid_t pid = ::getpid();
  for (int i = 0; i < kMostAncestors && (pid = parent_of(proc, pid)) > 0; ++i) {
    if (!began_alike(proc, pid, environment, names)) continue;  // a wrapper may have hidden it
    const auto found = flight::view_flight(proc, pid);
    if (!found || found->world_size < 2) continue;
    if (found->phase == flight::FlightPhase::wired_up) refuse(pid, *found);
  }
}

}  // namespace ddp::world
