#include "launch/freed_nodes.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "cli/option_values.hpp"
#include "topology/network/hostlist.hpp"

namespace ddp::launcher {
namespace {

// For agents to remove their folders and to exit. Slurm ends one that takes longer.
constexpr std::chrono::seconds kAgentsEnd{3};
constexpr std::chrono::seconds kSlurmAnswers{60};
constexpr std::size_t kMostReasonBytes = 300;

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::vector<std::string> nodes_to_keep(const std::string& facts, const std::vector<std::string>& freed) {
  const auto middle = facts.find('|');
  if (middle == std::string::npos) return {};
  const std::string batch_host = facts.substr(0, middle);
  std::vector<std::string> nodes;
  try {
    nodes = topology::expand_hostlist(facts.substr(middle + 1));
  } catch (const Error&) {
    return {};
  }
  const std::size_t before = nodes.size();
  std::erase_if(nodes, [&](const std::string& name) { return name != batch_host && has(freed, name); });
  return nodes.size() < before ? nodes : std::vector<std::string>{};
}

void FreedNodes::add(const std::string& job, const std::string& node) {
  waiting_[job].push_back(node);
  due_ = Deadline::after(kAgentsEnd);
}

std::optional<Deadline> FreedNodes::next_deadline() const {
  return program_ ? limit_ : waiting_.empty() ? std::nullopt : due_;
}

void FreedNodes::time_passed() {
  if (program_) {
    const auto take = [this](const std::string& line) { last_line_ = line; };
    program_.read(take);
    const auto end = program_.end(take);
    if (!end && !limit_->expired()) return;
    if (!end) {
      program_ = HeardProgram{};
      last_line_ = fmt::format("no answer within {} s", kSlurmAnswers.count());
    }
    const bool success = end && end->shell_status() == 0;
    if (std::exchange(shrinks_, false)) return report(success);
    if (success) return shrink(last_line_);
    if (last_line_.find("Invalid job id") == std::string::npos) report(false);  // else it is over
  } else if (!waiting_.empty() && due_->expired()) {
    ask();
  }
}

void FreedNodes::ask() {
  auto next = waiting_.extract(waiting_.begin());
  job_ = next.key();
  freed_ = std::move(next.mapped());
  last_line_.clear();
  limit_ = Deadline::after(kSlurmAnswers);
  try {
    program_ = HeardProgram{
        loop_, environment_, {"squeue", "--noheader", "--jobs", job_, "--format", kKeptNodesFormat}, Heard::all};
  } catch (const Error& error) {
    last_line_ = error.what();
    report(false);
  }
}

/// A job all of whose nodes have left is about to end (ddprun --join).
void FreedNodes::shrink(const std::string& facts) {
  const std::vector<std::string> kept = nodes_to_keep(facts, freed_);
  if (kept.empty()) return;
  std::erase_if(freed_, [&](const std::string& name) { return has(kept, name); });
  last_line_.clear();
  limit_ = Deadline::after(kSlurmAnswers);
  try {
    program_ = HeardProgram{loop_,
                            environment_,
                            {"scontrol", "update", "JobId=" + job_, fmt::format("NodeList={}", fmt::join(kept, ","))},
                            Heard::all};
    shrinks_ = true;
  } catch (const Error& error) {
    last_line_ = error.what();
    report(false);
  }
}

void FreedNodes::report(bool success) const {
  const std::string nodes = fmt::format("{}", fmt::join(freed_, ", "));
  const char* const verb = freed_.size() == 1 ? "is" : "are";
  base::write_stderr_line(success ? fmt::format("ddprun: Slurm has {} back from job {}", nodes, job_)
                                  : fmt::format("ddprun: {} {} idle in Slurm job {}, which keeps {}: {}", nodes, verb,
                                                job_, freed_.size() == 1 ? "it" : "them",
                                                last_line_.empty()
                                                    ? "Slurm said nothing"
                                                    : cli::printable(last_line_.substr(0, kMostReasonBytes))));
}

}  // namespace ddp::launcher
