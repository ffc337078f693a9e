#include <ddp/work.hpp>

#include "collectives/work_state.hpp"

namespace ddp {
namespace collectives {
namespace {

// The group ends every operation by its deadline; after this grace time wait() throws.
constexpr auto kSlack = std::chrono::seconds(30);

}  // namespace

void WorkState::finish(std::optional<Error> error) {
  const std::lock_guard lock(mutex_);
  if (done_) return;
  done_ = true;
  finished_at_ = Deadline::Clock::now();
  error_ = std::move(error);
  finished_.notify_all();
}

void WorkState::wait(std::optional<Deadline> limit) {
  std::unique_lock lock(mutex_);
  const auto until = limit ? limit->when() : deadline_.when() + kSlack;
  if (!finished_.wait_until(lock, until, [&] { return done_; })) {
    throw Error{{.code = ErrorCode::timeout,
                 .attempted = "waiting for " + description_,
                 .cause = "it was still running when the caller stopped waiting",
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  if (error_) throw *error_;
}

bool WorkState::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

std::optional<Error> WorkState::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::optional<Deadline::Clock::time_point> WorkState::finished_at() const {
  const std::lock_guard lock(mutex_);
  if (!done_) return std::nullopt;
  return finished_at_;
}

}  // namespace collectives

void Work::wait() const { state_->wait(std::nullopt); }
void Work::wait(Deadline deadline) const { state_->wait(deadline); }
bool Work::done() const { return state_->done(); }
std::optional<Error> Work::error() const { return state_->error(); }
std::optional<Deadline::Clock::time_point> Work::finished_at() const { return state_->finished_at(); }

}  // namespace ddp
