#include "collectives/shm/shm_backend.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/message.hpp"
#include "collectives/backend.hpp"
#include "collectives/shm/segment_rendezvous.hpp"

namespace ddp::collectives::shm {
namespace {

using Clock = Deadline::Clock;

/// Unsuccessful polls between two looks at the clock, which may be a system call.
constexpr unsigned kPollsPerLook = 64;
constexpr std::chrono::milliseconds kFirstLifeCheck{1};
constexpr std::chrono::milliseconds kLifeChecks{5};
/// Time for ranks to show what they have called, once two differ.
constexpr std::chrono::milliseconds kMismatchWait{100};
/// Most small collectives that one poll completes.
constexpr int kCollectivesPerPoll = 16;

class ShmBackend;

class ShmRequest final : public Request {
 public:
  explicit ShmRequest(ShmBackend& backend) : backend_(backend) {}

  void post() noexcept override;
  Outcome poll() noexcept override;
  Failure failure() const override;
  bool waits(std::size_t operation) const noexcept override;
  void release() noexcept override;

 private:
  friend class ShmBackend;
  ShmBackend& backend_;
  std::span<const Operation> operations_;
  Deadline deadline_{Clock::time_point{}};
  Outcome outcome_ = Outcome::running;
  bool posted_ = false;
  std::size_t unfinished_ = 0;  ///< operations
};

class ShmBackend final : public Backend {
 public:
  ShmBackend(const BackendConfig& config, Endpoint endpoint, const Settings& settings)
      : config_(config), endpoint_(std::move(endpoint)), settings_(settings) {}

  ~ShmBackend() override { leave(); }
  ShmBackend& operator=(ShmBackend&&) = delete;

  const BackendTraits& traits() const noexcept override { return kCpuTraits; }
  Bytes address() const override { return base::encode(endpoint_.address()); }
  void connect(const std::vector<Bytes>& addresses, Deadline deadline) override;
  Request& init(std::span<const Operation> operations, Deadline deadline) override;
  void abort() noexcept override {
    aborted_.store(true);
    if (Doorbell* const bell = bell_.load()) bell->ring();
  }
  /// Keeps the memory until the destructor: abort and rest may still be called.
  void close(Deadline /*immediate*/) noexcept override { leave(); }
  void rest(std::chrono::microseconds limit) noexcept override {
    Doorbell* const bell = bell_.load();
    if (bell == nullptr) return Backend::rest(limit);
    rested_.store(true, std::memory_order_relaxed);
    const bool room = awaits_room_.load(std::memory_order_relaxed);
    if (!aborted_.load()) bell->sleep(limit, room ? Doorbell::Wait::data_or_room : Doorbell::Wait::data);
  }

  void post(ShmRequest& request) noexcept;
  Outcome poll(ShmRequest& request) noexcept;
  Failure failure() const { return failed_ ? failed_->second : Failure{}; }
  bool waits(const Operation& operation) const noexcept {
    return !operation.is_transfer() || group_->transfers[static_cast<std::size_t>(operation.root)].waits(operation);
  }
  void release(ShmRequest& request) noexcept;

 private:
  bool advance();
  bool advance_collectives();
  bool advance_transfers();
  void look_around(const ShmRequest& request);
  void check_lives();
  std::vector<int> waits_for() const;
  void follow_verdict();
  void end_all(Outcome outcome, Failure failure);
  void leave() noexcept {
    if (group_ == nullptr) return;
    group_->watch.withdraw(failed_ || aborted_.load() ? RankState::resigned : RankState::closed);
    group_->bell.ring();
  }

  BackendConfig config_;
  Endpoint endpoint_;
  Settings settings_;
  std::unique_ptr<ShmGroup> group_;
  std::atomic<Doorbell*> bell_{nullptr};  ///< the group's, once connected
  std::atomic<bool> aborted_{false};
  std::atomic<bool> rested_{false};
  std::atomic<bool> awaits_room_{false};  ///< set by the last poll without progress
  std::deque<ShmRequest> requests_;       ///< owns all requests
  std::vector<ShmRequest*> free_;
  std::vector<ShmRequest*> collectives_;  ///< posted, not over: few
  std::vector<ShmRequest*> transfers_;    ///< posted, not over
  std::optional<std::pair<Outcome, Failure>> failed_;
  bool mismatch_ = false;
  unsigned vain_ = 0;  ///< polls without progress
  std::optional<Clock::time_point> waiting_since_;
  Clock::time_point next_life_check_;
};

void ShmRequest::post() noexcept { backend_.post(*this); }
Outcome ShmRequest::poll() noexcept { return outcome_ == Outcome::running ? backend_.poll(*this) : outcome_; }
Failure ShmRequest::failure() const { return backend_.failure(); }
bool ShmRequest::waits(std::size_t operation) const noexcept { return backend_.waits(operations_[operation]); }
void ShmRequest::release() noexcept { backend_.release(*this); }

void ShmBackend::connect(const std::vector<Bytes>& addresses, Deadline deadline) {
  std::vector<EndpointAddress> parsed;
  for (const Bytes& address : addresses) parsed.push_back(base::decode<EndpointAddress>(address));
  if (parsed.size() > kMaxRanks) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = fmt::format("sharing memory in group {}", config_.group),
                 .cause = fmt::format("{} ranks are more than {}", parsed.size(), kMaxRanks)}};
  }
  const auto prepare = [&](SharedSegment segment, std::uint64_t first_step) {
    group_ = std::make_unique<ShmGroup>(std::move(segment), config_.rank, first_step, settings_);
  };
  try {
    meet({endpoint_, parsed, config_.rank, settings_.first_step, settings_.hook, prepare}, deadline);
  } catch (const Error&) {
    group_.reset();
    endpoint_.stop_listening();
    throw;
  }
  endpoint_.stop_listening();
  bell_.store(&group_->bell);
}

Request& ShmBackend::init(std::span<const Operation> operations, Deadline deadline) {
  if (free_.empty()) {
    requests_.emplace_back(*this);
    free_.push_back(&requests_.back());
  }
  ShmRequest& request = *free_.back();
  free_.pop_back();
  request.operations_ = operations;
  request.deadline_ = deadline;
  request.outcome_ = Outcome::running;
  request.posted_ = false;
  request.unfinished_ = operations.size();
  return request;
}

void ShmBackend::post(ShmRequest& request) noexcept {
  request.posted_ = true;
  if (aborted_.load()) end_all(Outcome::aborted, {{}, "the group was aborted", {}});
  if (failed_) {
    request.outcome_ = failed_->first;
    return;
  }
  if (request.operations_.empty()) {
    request.outcome_ = Outcome::ok;
    return;
  }
  if (!request.operations_.front().is_transfer()) {
    collectives_.push_back(&request);
    if (collectives_.size() == 1) group_->run.start(request.operations_.front());
    return;
  }
  transfers_.push_back(&request);
  for (const Operation& operation : request.operations_) {
    group_->transfers[static_cast<std::size_t>(operation.root)].post(operation, request.unfinished_);
  }
}

void ShmBackend::release(ShmRequest& request) noexcept {
  if (request.posted_ && request.outcome_ == Outcome::running) {  // aborted, and not polled since
    end_all(Outcome::aborted, {{}, "the group was aborted", {}});
  }
  free_.push_back(&request);
}

Outcome ShmBackend::poll(ShmRequest& request) noexcept {
  if (aborted_.load(std::memory_order_relaxed)) {
    end_all(Outcome::aborted, {{}, "the group was aborted", {}});
    request.outcome_ = failed_->first;
    return request.outcome_;
  }
  // Read before looking at the operations: data that other ranks have left may complete them.
  const bool failed = group_->verdict.has_failure();
  if (advance()) {
    waiting_since_.reset();
  } else if (failed) {
    follow_verdict();
  } else if (request.outcome_ == Outcome::running) {
    awaits_room_.store(group_->run.waits_for_room(), std::memory_order_relaxed);
    look_around(request);
  }
  return request.outcome_;
}

/// @return whether any operation has progressed
bool ShmBackend::advance() {
  bool moved = false;
  if (!collectives_.empty() && !mismatch_) moved = advance_collectives();
  if (!transfers_.empty() && advance_transfers()) moved = true;
  return moved;
}

bool ShmBackend::advance_collectives() {
  bool moved = false;
  for (int completed = 0; completed < kCollectivesPerPoll && !collectives_.empty();) {
    switch (group_->run.advance()) {
      case CollectiveRun::State::waiting: return moved;
      case CollectiveRun::State::moving: return true;
      case CollectiveRun::State::mismatch: mismatch_ = true; return moved;
      case CollectiveRun::State::complete: break;
    }
    moved = true;
    ++completed;
    ShmRequest& request = *collectives_.front();
    if (--request.unfinished_ == 0) {
      request.outcome_ = Outcome::ok;
      collectives_.erase(collectives_.begin());
      if (collectives_.empty()) return true;
    }
    const ShmRequest& next = *collectives_.front();
    group_->run.start(next.operations_[next.operations_.size() - next.unfinished_]);
  }
  return moved;
}

bool ShmBackend::advance_transfers() {
  bool moved = false;
  std::optional<int> differs;
  for (int peer = 0; peer < config_.size; ++peer) {
    PeerTransfers& transfers = group_->transfers[static_cast<std::size_t>(peer)];
    if (!transfers.busy()) continue;
    if (transfers.advance()) moved = true;
    if (transfers.mismatch() && !differs) differs = peer;
  }
  const auto over = [](ShmRequest* request) {
    if (request->unfinished_ == 0) request->outcome_ = Outcome::ok;
    return request->unfinished_ == 0;
  };
  transfers_.erase(std::remove_if(transfers_.begin(), transfers_.end(), over), transfers_.end());
  if (!differs) return moved;
  group_->verdict.publish(
      {.cause = FailureCause::message, .ranks = {std::min(*differs, config_.rank), std::max(*differs, config_.rank)}});
  follow_verdict();
  return true;
}

/// The slow path, for an operation that waits.
void ShmBackend::look_around(const ShmRequest& request) {
  if (++vain_ % kPollsPerLook != 0 && !rested_.load(std::memory_order_relaxed)) return;
  rested_.store(false, std::memory_order_relaxed);
  const Clock::time_point now = Clock::now();
  if (!waiting_since_) {
    waiting_since_ = now;
    next_life_check_ = now + kFirstLifeCheck;
  }
  if (mismatch_) {
    const std::vector<int> ranks = group_->run.differing(now - *waiting_since_ > kMismatchWait);
    if (!ranks.empty()) {
      group_->verdict.publish({.cause = FailureCause::mismatch, .ranks = ranks});
      group_->bell.ring();
      return follow_verdict();
    }
  }
  if (now >= next_life_check_) {
    next_life_check_ = now + kLifeChecks;
    check_lives();
    if (failed_ || request.outcome_ != Outcome::running) return;
  }
  if (now >= request.deadline_.when()) {
    std::vector<int> ranks = waits_for();
    std::string cause = fmt::format("{}: nothing from {}", request.operations_.front().description(),
                                    ranks.empty() ? "the other ranks" : format_ranks(ranks));
    end_all(Outcome::timeout, {std::move(ranks), std::move(cause), {}});
  }
}

std::vector<int> ShmBackend::waits_for() const {
  std::vector<int> ranks;
  if (!collectives_.empty()) ranks = group_->run.waits_for();
  for (int peer = 0; peer < config_.size; ++peer) {
    if (group_->transfers[static_cast<std::size_t>(peer)].busy()) ranks.push_back(peer);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

/// A collective ends with the death of any rank, a transfer with its peer's.
void ShmBackend::check_lives() {
  std::vector<int> lost = group_->watch.gone(waits_for());
  const std::vector<int> dead = group_->watch.dead();
  if (lost.empty() && (collectives_.empty() || dead.empty())) return;
  if (advance()) return;  // data that it has left may be enough
  lost.insert(lost.end(), dead.begin(), dead.end());
  std::sort(lost.begin(), lost.end());
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  group_->verdict.publish({.cause = FailureCause::death, .ranks = std::move(lost)});
  group_->bell.ring();
  follow_verdict();
}

void ShmBackend::follow_verdict() {
  SharedFailure verdict = group_->verdict.read();
  const std::string ranks = format_ranks(verdict.ranks);
  if (verdict.cause == FailureCause::mismatch) {
    const std::string own =
        collectives_.empty() ? "" : "; here: " + collectives_.front()->operations_.front().description();
    return end_all(
        Outcome::mismatch,
        {std::move(verdict.ranks), fmt::format("{} called another operation than the others{}", ranks, own), {}});
  }
  if (verdict.cause == FailureCause::message) {
    const bool own = verdict.author == config_.rank;
    std::optional<UnfitMessage> message;
    for (const PeerTransfers& transfers : group_->transfers) {
      if (own && transfers.mismatch()) message = transfers.unfit();
    }
    return end_all(Outcome::mismatch, {.ranks = std::move(verdict.ranks),
                                       .cause = fmt::format("a message between {} does not fit its receive", ranks),
                                       .message = std::move(message),
                                       .elsewhere = !own});
  }
  end_all(Outcome::peers_failed, {std::move(verdict.ranks), fmt::format("{} ended, or closed the group", ranks), {}});
}

void ShmBackend::end_all(Outcome outcome, Failure failure) {
  PeerMemory::withdraw(group_->segment.view().control(config_.rank));
  if (!failed_ || outcome == Outcome::aborted) failed_.emplace(outcome, std::move(failure));
  for (ShmRequest* const request : collectives_) request->outcome_ = failed_->first;
  for (ShmRequest* const request : transfers_) request->outcome_ = failed_->first;
  collectives_.clear();
  transfers_.clear();
}

}  // namespace

std::unique_ptr<Backend> create(const BackendConfig& config) { return create(config, Endpoint{}); }

std::unique_ptr<Backend> create(const BackendConfig& config, Endpoint endpoint) {
  return create(config, std::move(endpoint), Settings{});
}

std::unique_ptr<Backend> create(const BackendConfig& config, Endpoint endpoint, const Settings& settings) {
  return std::make_unique<ShmBackend>(config, std::move(endpoint), settings);
}

}  // namespace ddp::collectives::shm
