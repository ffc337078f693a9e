#include "collectives/hierarchy/hierarchical_backend.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "collectives/backend.hpp"

namespace ddp::collectives::hierarchy {
namespace {

// Longest poll, apart from its current step.
constexpr std::chrono::microseconds kPollLimit{50};
// Longest poll after a failed step: the other parts are not awaited any longer.
constexpr std::chrono::milliseconds kLastPollLimit{200};
// While steps run in two parts, a rest in one must not hide the other's end for long.
constexpr std::chrono::microseconds kShortRest{100};
// Operations of a group that are prepared while others run, so that the next one's steps follow without a pause.
constexpr int kConcurrentCollectives = 4;

std::vector<int> all_ranks(const Layout& layout) {
  std::vector<int> ranks;
  for (int rank = 0; rank < layout.size(); ++rank) ranks.push_back(rank);
  return ranks;
}

std::vector<int> leaders(const Layout& layout) {
  std::vector<int> ranks;
  for (int domain = 0; domain < layout.domains(); ++domain) ranks.push_back(layout.leader(domain));
  return ranks;
}

}  // namespace

HierarchicalBackend::HierarchicalBackend(Layout layout, Parts parts, std::size_t segment_bytes)
    : layout_(std::move(layout)),
      segment_bytes_(segment_bytes),
      parts_{Part{std::move(parts.inner), layout_.members(layout_.domain())},
             Part{std::move(parts.outer), leaders(layout_)}, Part{std::move(parts.flat), all_ranks(layout_)}},
      tell_domains_(std::move(parts.tell_domains)),
      hook_(parts.hook),
      traits_(kCpuTraits) {
  traits_.concurrent_collectives = kConcurrentCollectives;
  for (const Part& each : parts_) {
    if (each.backend() == nullptr) continue;
    const BackendTraits& traits = each.backend()->traits();
    traits_.completes_inline = traits_.completes_inline && traits.completes_inline;
    traits_.detects_peer_death = traits_.detects_peer_death && traits.detects_peer_death;
  }
}

HierarchicalBackend::~HierarchicalBackend() = default;

void HierarchicalBackend::connect(const std::vector<Bytes>& /*unused*/, Deadline /*immediate*/) {}

Request& HierarchicalBackend::init(std::span<const Operation> operations, Deadline deadline) {
  if (operations.front().is_transfer()) {
    return take_idle(messages_, *this).begin(operations, deadline);
  }
  return take_idle(collectives_, *this).begin(operations, deadline);
}

void HierarchicalBackend::abort() noexcept {
  aborted_.store(true, std::memory_order_release);  // first, so that its effects do not look like a failure
  for (const Part& each : parts_) {
    if (each.backend() != nullptr) each.backend()->abort();
  }
}

void HierarchicalBackend::close(Deadline deadline) noexcept {
  for (const Part& each : parts_) {
    if (each.backend() != nullptr) each.backend()->close(deadline);
  }
}

void HierarchicalBackend::rest(std::chrono::microseconds limit) noexcept {
  const auto busy = std::count_if(parts_.begin(), parts_.end(), [](const Part& each) { return each.busy(); });
  const auto sleepy = std::find_if(parts_.begin(), parts_.end(), [](const Part& each) { return each.busy(); });
  if (sleepy == parts_.end()) return Backend::rest(std::min(limit, kShortRest));
  sleepy->backend()->rest(busy == 1 ? limit : std::min(limit, kShortRest));
}

void HierarchicalBackend::progress() noexcept {
  try {
    if (failed()) {
      for (Part& each : parts_) each.poll();
    } else if (aborted_.load(std::memory_order_acquire)) {
      fail(Outcome::aborted, {});
    } else {
      advance();
    }
  } catch (const std::exception& problem) {  // out of memory
    fail(Outcome::peers_failed, {.ranks = {layout_.rank()}, .cause = problem.what()});
  }
}

void HierarchicalBackend::advance() {
  Deadline enough = Deadline::after(kPollLimit);
  bool ending = false;
  bool moved = true;
  while (moved) {
    moved = poll_parts();
    moved = run_local_step() || moved;
    for (const auto scope : {Task::Scope::domain, Task::Scope::between}) moved = post_steps(scope) || moved;
    std::erase_if(tasks_, [](const Task* task) { return task->over(); });
    if (trouble_ && !std::exchange(ending, true)) enough = Deadline::after(kLastPollLimit);
    if (enough.expired()) break;
  }
  if (!trouble_) return;
  for (const auto& each : messages_) each->look();
  fail(trouble_->outcome, std::move(trouble_->failure), trouble_->where);
}

bool HierarchicalBackend::poll_parts() {
  bool moved = false;
  for (const Lane lane : {Lane::inner, Lane::outer, Lane::flat}) {
    Part::Look look = part(lane).poll();
    if (look.outcome != Outcome::running) {
      if (look.outcome == Outcome::timeout && look.task != nullptr) {
        look.failure.ranks = absent(lane, *look.task, look.failure.ranks);
      }
      note(look.outcome, std::move(look.failure), lane);
    }
    moved = moved || look.moved;
  }
  return moved;
}

bool HierarchicalBackend::has_room(const Stage& stage) const {
  if (!part(stage.lane).has_room(stage.messages)) return false;
  if (stage.lane == Lane::inner) return true;
  // outer and flat may share connections, where the bytes of a collective that a rank has not reached yet block all
  // later bytes: so those must not belong to an earlier turn
  return stage.messages ? part(Lane::outer).collectives() == 0 : part(Lane::outer).idle() && part(Lane::flat).idle();
}

bool HierarchicalBackend::post_steps(Task::Scope scope) {
  bool moved = false;
  for (Task* task : tasks_) {
    while (const auto stage = task->next(scope)) {
      // The order is fixed: a step that cannot start yet holds up all later ones.
      const Stage& what = task->job().stage(*stage);
      if (task->given_up() || !task->ready(*stage) || !has_room(what)) return moved;
      if (what.needs != 0) hook_(shm::Phase::between_stages);
      part(what.lane).start(*task, *stage);
      moved = true;
    }
  }
  return moved;
}

bool HierarchicalBackend::run_local_step() {
  std::vector<Operation> none;
  for (Task* task : tasks_) {
    for (std::size_t stage = 0; stage < task->job().stages(); ++stage) {
      const Stage& what = task->job().stage(stage);
      if (what.lane != Lane::local || !task->unposted(stage) || !task->ready(stage)) continue;
      what.step(task->job(), task->posted(stage), none);
      task->ended(stage);
      return true;
    }
  }
  return false;
}

std::vector<int> HierarchicalBackend::absent(Lane lane, const Task& task, const std::vector<int>& ranks) const {
  if (layout_.domains() == 1) return ranks;
  std::vector<int> found;
  for (const int rank : ranks) {
    if (rank == task.job().operation().root) continue;
    const bool alone = layout_.members_of(layout_.domain_of(rank)) == 1;
    if (lane == Lane::inner ? layout_.index_of(rank) != 0 : alone) found.push_back(rank);
  }
  return found;
}

void HierarchicalBackend::note(Outcome outcome, Failure failure, Lane where) {
  if (!trouble_) trouble_ = {.outcome = outcome, .failure = std::move(failure), .where = where};
}

void HierarchicalBackend::fail(Outcome outcome, Failure failure, std::optional<Lane> where) {
  if (failed()) return;
  if (aborted_.load(std::memory_order_acquire)) {
    outcome = Outcome::aborted;
    failure = {};
  } else if (outcome == Outcome::aborted) {  // by another rank, which gave up and told its neighbours
    outcome = Outcome::peers_failed;
  }
  outcome_ = outcome;
  failure_ = std::move(failure);
  if (outcome != Outcome::timeout) end_parts(where);
}

void HierarchicalBackend::end_parts(std::optional<Lane> where) {
  const bool between_domains = where == Lane::outer || where == Lane::flat;
  for (const Lane lane : {Lane::inner, Lane::outer, Lane::flat}) {
    Backend* const backend = part(lane).backend();
    if (backend == nullptr || lane == where) continue;
    if (lane == Lane::inner || !tell_domains_ || aborted_.load(std::memory_order_acquire)) {
      backend->abort();
    } else if (!between_domains) {
      tell_domains_(failure_);
    }
  }
  for (Part& each : parts_) each.poll();
}

Outcome HierarchicalBackend::outcome_of(const Task& task) const {
  if (task.over()) return Outcome::ok;
  if (!failed()) return Outcome::running;
  const bool in_use = std::any_of(parts_.begin(), parts_.end(), [&](const Part& each) { return each.uses(task); });
  return in_use ? Outcome::running : outcome_;
}

void HierarchicalBackend::drop(Task& task) {
  std::erase(tasks_, &task);
  for (Part& each : parts_) each.drop(task);
}

Request& HierarchicalBackend::Collectives::begin(std::span<const Operation> operations, Deadline deadline) {
  while (tasks_.size() < operations.size()) tasks_.push_back(std::make_unique<Task>());
  for (std::size_t index = 0; index < operations.size(); ++index) {
    tasks_[index]->begin(backend_.layout_, operations[index], deadline, backend_.segment_bytes_);
  }
  count_ = operations.size();
  used_ = true;
  return *this;
}

void HierarchicalBackend::Collectives::post() noexcept {
  for (std::size_t index = 0; index < count_; ++index) backend_.tasks_.push_back(tasks_[index].get());
  backend_.progress();
}

Outcome HierarchicalBackend::Collectives::poll() noexcept {
  backend_.progress();
  Outcome all = Outcome::ok;
  for (std::size_t index = 0; index < count_; ++index) {
    const Outcome each = backend_.outcome_of(*tasks_[index]);
    if (each == Outcome::running) return each;
    if (each != Outcome::ok) all = each;
  }
  return all;
}

void HierarchicalBackend::Collectives::release() noexcept {
  for (std::size_t index = 0; index < count_; ++index) backend_.drop(*tasks_[index]);
  used_ = false;
}

Request& HierarchicalBackend::Messages::begin(std::span<const Operation> operations, Deadline deadline) {
  const Layout& layout = backend_.layout_;
  refused_ = std::any_of(operations.begin(), operations.end(),
                         [](const Operation& operation) { return operation.tag == kOwnTag; });
  used_ = true;
  broken_ = false;
  for (Share& share : shares_) {
    share.operations.clear();
    share.late.clear();
  }
  places_.clear();
  if (refused_) return *this;
  for (const Operation& operation : operations) {
    const bool near = layout.domain_of(operation.root) == layout.domain();
    Operation& made = shares_[near ? 0 : 1].operations.emplace_back(operation);
    if (near) made.root = layout.index_of(operation.root);
    places_.emplace_back(near ? 0 : 1, shares_[near ? 0 : 1].operations.size() - 1);
  }
  for (Share& share : shares_) {
    if (share.operations.empty()) continue;
    share.request = &backend_.part(share.lane).backend()->init(share.operations, deadline);
    backend_.part(share.lane).add_busy(1);
  }
  return *this;
}

void HierarchicalBackend::Messages::post() noexcept {
  for (Share& share : shares_) {
    if (share.request != nullptr) share.request->post();
  }
}

Outcome HierarchicalBackend::Messages::poll() noexcept {
  if (refused_) return Outcome::mismatch;
  bool running = false;
  for (Share& share : shares_) {
    if (share.request == nullptr) continue;
    const Outcome outcome = share.request->poll();
    if (outcome == Outcome::running) {
      running = true;
      continue;
    }
    if (outcome != Outcome::ok) {
      broken_ = true;
      for (std::size_t i = 0; i < share.operations.size(); ++i) share.late.push_back(share.request->waits(i));
      backend_.note(outcome, backend_.part(share.lane).in_group(share.request->failure()), share.lane);
    }
    end(share);
  }
  if (broken_) backend_.progress();
  if (running) return Outcome::running;
  return broken_ ? backend_.outcome_ : Outcome::ok;
}

void HierarchicalBackend::Messages::look() noexcept {
  for (const Share& share : shares_) {
    if (share.request != nullptr) share.request->poll();
  }
}

Failure HierarchicalBackend::Messages::failure() const {
  if (!refused_) return backend_.failure_;
  return {.ranks = {backend_.layout_.rank()},
          .cause = fmt::format("tag {} is used by the backend itself; choose a smaller one", kOwnTag)};
}

bool HierarchicalBackend::Messages::waits(std::size_t operation) const noexcept {
  if (refused_) return true;
  const auto [share, place] = places_[operation];
  if (place < shares_[share].late.size()) return shares_[share].late[place];
  const Request* const request = shares_[share].request;
  return request != nullptr && request->waits(place);
}

void HierarchicalBackend::Messages::release() noexcept {
  for (Share& share : shares_) {
    if (share.request != nullptr) end(share);
  }
  used_ = false;
}

void HierarchicalBackend::Messages::end(Share& share) {
  share.request->release();
  share.request = nullptr;
  backend_.part(share.lane).add_busy(-1);
}

}  // namespace ddp::collectives::hierarchy
