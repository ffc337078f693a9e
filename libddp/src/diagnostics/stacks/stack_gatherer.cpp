#include "diagnostics/stacks/stack_gatherer.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/library_thread.hpp"
#include "base/unique_fd.hpp"

namespace ddp::diagnostics {
namespace {

// Debuggers read megabytes of symbols each: not as many as there are ranks.
constexpr std::size_t kAtOnce = 8;

}  // namespace

struct StackGatherer::Shared {
  Shared(std::vector<RankProcess> processes, StackTools programs, std::string name, Deadline limit)
      : ranks(std::move(processes)), tools(std::move(programs)), host(std::move(name)), deadline(limit) {
    for (const RankProcess& each : ranks) missing.push_back(each.rank);
  }
  void run();

  const std::vector<RankProcess> ranks;
  const StackTools tools;
  const std::string host;
  const Deadline deadline;
  base::WakeEvent ready;
  std::mutex mutex;  ///< for what follows
  std::size_t next = 0;
  std::size_t done = 0;
  std::vector<int> missing;
  RankStacks stacks;
  bool closed = false;
};

void StackGatherer::Shared::run() {
  for (;;) {
    std::unique_lock lock(mutex);
    if (closed || next == ranks.size()) return;
    const RankProcess each = ranks[next++];
    lock.unlock();
    ProcessStack stack;
    try {
      stack = read_stack(tools, each.pid, deadline);
    } catch (const std::exception& error) {
      stack.notes.push_back(fmt::format("the stack of rank {} could not be read: {}", each.rank, error.what()));
    }
    lock.lock();
    for (const std::string& note : stack.notes) stacks.note(host, note);
    if (!stack.tool.empty()) {
      stacks.add({.ranks = {each.rank}, .tool = stack.tool, .text = std::move(stack.text)}, kMaxNodeStackBytes);
      std::erase(missing, each.rank);
    }
    if (++done == ranks.size()) ready.ring();
  }
}

StackGatherer::StackGatherer(std::vector<RankProcess> ranks, StackTools tools, std::string host, Deadline deadline)
    : deadline_(deadline),
      shared_(std::make_shared<Shared>(std::move(ranks), std::move(tools), std::move(host), deadline)) {
  if (shared_->ranks.empty()) shared_->ready.ring();
  for (std::size_t i = 0; i < std::min(kAtOnce, shared_->ranks.size()); ++i)
    base::start_thread([kept = shared_] { kept->run(); }).detach();
}

StackGatherer::~StackGatherer() {
  const std::lock_guard lock(shared_->mutex);
  shared_->closed = true;
}

int StackGatherer::fd() const { return shared_->ready.fd(); }

std::optional<RankStacks> StackGatherer::take() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->done < shared_->ranks.size() && !deadline_.expired()) return std::nullopt;
  RankStacks stacks = shared_->stacks;
  if (!shared_->missing.empty())
    stacks.add({.ranks = shared_->missing, .tool = "none", .text = "(could not be read)"}, kMaxNodeStackBytes);
  return stacks;
}

void RankStacks::add(StackGroup group, std::size_t max_bytes) {
  if (group.ranks.empty()) return;
  auto equal = std::find_if(groups.begin(), groups.end(), [&](const StackGroup& known) {
    return known.tool == group.tool && known.text == group.text;
  });
  if (equal == groups.end()) {
    std::size_t bytes = group.text.size();
    for (const StackGroup& known : groups) bytes += known.text.size();
    if (bytes > max_bytes) {
      group.text = "(left out: the stacks of other ranks are too long)";
      return add(std::move(group), max_bytes + group.text.size());
    }
    groups.push_back(std::move(group));
    equal = groups.end() - 1;
  } else {
    equal->ranks.insert(equal->ranks.end(), group.ranks.begin(), group.ranks.end());
  }
  std::sort(equal->ranks.begin(), equal->ranks.end());
  std::sort(groups.begin(), groups.end(),
            [](const StackGroup& a, const StackGroup& b) { return a.ranks.front() < b.ranks.front(); });
}

void RankStacks::note(const std::string& host, const std::string& text) {
  auto known = std::find_if(notes.begin(), notes.end(), [&](const StackNote& each) { return each.text == text; });
  if (known == notes.end()) {
    if (notes.size() >= kMaxStackNotes) return;
    known = notes.insert(known, {.text = text});
  }
  if (std::find(known->hosts.begin(), known->hosts.end(), host) == known->hosts.end()) known->hosts.push_back(host);
}

}  // namespace ddp::diagnostics
