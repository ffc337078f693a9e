#include "step_program/step_watch.hpp"

#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "step_program/node_list.hpp"
#include "task_side/network_notes.hpp"
#include "topology/network/hostlist.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr const char* kThisHost = "127.0.0.1";
// For news of other nodes that came about at the same time.
constexpr std::chrono::milliseconds kNewsLimit{200};
// A step that ended sooner was not launched, or missed nothing.
constexpr std::chrono::seconds kLaunch{2};
// torch's limit is 128 Ki keys.
constexpr std::uint32_t kRanksAtOnce = 4096;

std::string signal_name(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name != nullptr ? fmt::format("SIG{} ({})", name, number) : fmt::format("signal {}", number);
}

/// How Slurm ends what is left of a step.
bool may_be_slurms(std::int32_t status) {
  return WIFSIGNALED(status) && (WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGKILL);
}

}  // namespace

std::string describe_end(std::int32_t status) {
  if (!WIFSIGNALED(status)) return fmt::format("failed with exit code {}", WEXITSTATUS(status));
  return fmt::format("was ended by {}{}", signal_name(WTERMSIG(status)), WCOREDUMP(status) ? ", core dumped" : "");
}

std::vector<std::string> describe_failure(const RankEnd& failure, const std::vector<RankEnd>& early, bool ends_step,
                                          const std::string& exception) {
  std::vector<std::string> lines;
  std::string first =
      fmt::format("srun --ddp: rank {} on {} {}{}; {}", failure.rank, failure.node, describe_end(failure.status),
                  exception.empty() ? "" : fmt::format(" ({})", exception),
                  ends_step ? "the step ends" : "the step goes on, as --kill-on-bad-exit says");
  if (WIFSIGNALED(failure.status) && WTERMSIG(failure.status) == SIGTERM)
    first += " (scancel, preemption and time limits send this signal to all)";
  lines.push_back(std::move(first));
  std::vector<std::string> names;
  std::int64_t longest_ms = 0;
  for (const RankEnd& end : early) {
    if (end.when_ms > failure.when_ms) continue;  // as it was told to, it may be
    longest_ms = std::max(longest_ms, failure.when_ms - end.when_ms);
    names.push_back(fmt::format("rank {} on {}", end.rank, end.node));
  }
  if (!names.empty()) {
    lines.push_back(
        fmt::format("srun --ddp: {} ended with exit code 0 {}{:.1f} s before rank {}: did others still wait for {}?",
                    listed(names), names.size() > 1 ? "up to " : "", static_cast<double>(longest_ms) / 1000.0,
                    failure.rank, names.size() > 1 ? "them" : "it"));
  }
  return lines;
}

std::vector<std::string> silent_nodes(StepStore& store, const StepNote& step) {
  const std::vector<std::string> nodes = topology::expand_hostlist(step.node_list);
  std::vector<std::string> keys;
  for (const std::string& node : nodes) keys.push_back(presence_key(node));
  const std::vector<Bytes> present = store.get(keys);
  std::vector<std::string> silent;
  for (std::size_t i = 0; i < present.size(); ++i) {
    if (present[i].empty()) silent.push_back(nodes[i]);
  }
  return silent;
}

std::vector<RankEnd> ends_with_0(StepStore& store, const StepNote& step) {
  std::vector<RankEnd> ends;
  for (std::uint32_t first = 0; first < step.world_size; first += kRanksAtOnce) {
    std::vector<std::string> keys;
    for (std::uint32_t rank = first; rank < std::min(step.world_size, first + kRanksAtOnce); ++rank)
      keys.push_back(end_key(rank));
    for (const Bytes& end : store.get(keys)) {
      if (!end.empty()) ends.push_back(decode_rank_end(end));
    }
  }
  return ends;
}

StepWatch::StepWatch(std::uint16_t port, bool failure_ends_step, bool nodes_expected)
    : failure_(kThisHost, port),
      store_(kThisHost, port),
      failure_ends_step_(failure_ends_step),
      nodes_expected_(nodes_expected),
      launch_(Deadline::after(kLaunch)) {
  failure_.ask_wait({kFailureKey});
}

void StepWatch::note_failure() {
  failed_ = true;
  failure_.take_wait();
  due_ = Deadline::after(kNewsLimit);
}

std::vector<std::string> StepWatch::lines() {
  due_.reset();
  if (std::exchange(said_, true)) return {};
  const std::vector<Bytes> notes = store_.get({kStepKey, kFailureKey, kDecisionKey});
  if (notes[0].empty()) {
    if (!nodes_expected_ || !launch_.expired()) return {};
    return {
        "srun --ddp: no node of this step has reported: if its tasks were started, the plugin with its ddp-step is not "
        "loaded on the nodes (plugstack.conf), or they do not reach this host"};
  }
  const StepNote step = decode_step_note(notes[0]);
  std::vector<std::string> lines;
  // Where there is a decision about the network, whoever made it has named those that are not there.
  if (notes[2].empty() || decode_decision(notes[2]).step_ends()) {
    if (const auto silent = silent_nodes(store_, step); !silent.empty()) {
      lines.push_back(
          fmt::format("srun --ddp: {} did not take part in this step (is the plugin with its ddp-step installed there, "
                      "and of this version? ddp-selftest --local says)",
                      listed(silent)));
    }
  }
  if (notes[1].empty()) return lines;
  const RankEnd failure = decode_rank_end(notes[1]);
  if (!lines.empty() && may_be_slurms(failure.status)) return lines;  // the consequence
  named_ = failure;
  const std::string exception = WIFSIGNALED(failure.status) ? std::string() : output_.exception(failure.rank);
  for (std::string& line : describe_failure(failure, ends_with_0(store_, step), failure_ends_step_, exception))
    lines.push_back(std::move(line));
  return lines;
}

}  // namespace ddp::srun_plugin
