#include "collectives/group_watch.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "collectives/group_driver.hpp"

namespace ddp::collectives {

GroupWatch::GroupWatch(GroupDriver& driver, const GroupMembers& members, const OperationLog& log)
    : driver_(driver),
      members_(members),
      detector_(std::make_unique<FailureDetector>(members, log, [this] { driver_.fail(); })) {}

GroupWatch::~GroupWatch() { stop(); }

void GroupWatch::look(Deadline::Clock::time_point now) {
  if (now < driver_.next_event() || inquiring_ || !driver_.concern()) return;
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  if (thread_.joinable()) thread_.join();  // it is at its end
  inquiring_ = true;
  try {
    thread_ = base::start_thread([this] { inquire(); });
  } catch (const Error& error) {
    inquiring_ = false;
    // without any thread, better late for other groups than never for this one
    base::log(base::LogLevel::warning, "looking into an operation of group '{}' on the progress thread: {}",
              members_.name, error.what());
    if (const auto concern = driver_.concern()) look_into(*concern);
  }
}

void GroupWatch::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (thread_.joinable()) thread_.join();
  detector_->close();
}

void GroupWatch::tell_of_close(const WorkState& work) noexcept {
  if (!members_.channel) return;
  const int own = members_.global(members_.rank);
  try {
    detector_->tell_all(Error{{.code = ErrorCode::peer_lost,
                               .attempted = work.description(),
                               .cause = fmt::format("rank {} closed the group while it was under way", own),
                               .ranks = {own},
                               .hint = "look at the last output of that rank"}});
  } catch (const std::exception& error) {  // they find out themselves, later
    base::log(base::LogLevel::warning, "telling the ranks of group '{}' of its end: {}", members_.name, error.what());
  }
}

void GroupWatch::end_group(const Error& error) noexcept {
  try {
    if (detector_->verdict()) return;  // which the others have, or find out, too
    const Error verdict = detector_->agree(error);
    driver_.fail();
    if (members_.channel) detector_->tell_all(verdict);
  } catch (const std::exception& failure) {  // they find out themselves, later
    base::log(base::LogLevel::warning, "telling the ranks of group '{}' of its end: {}", members_.name, failure.what());
  }
}

void GroupWatch::inquire() {
  while (const auto concern = driver_.concern()) look_into(*concern);
  inquiring_ = false;
}

void GroupWatch::look_into(const Concern& concern) {
  WorkState& work = WorkState::of(concern.work);
  const Operation& operation = work.operations()[concern.operation];
  bool interrupted = false;
  switch (concern.kind) {
    case Concern::Kind::failure:
      detector_->investigate(
          operation, concern.failure, [&] { return !driver_.closing(); },
          concern.failure ? earlier(work.deadline, Deadline::after(members_.peer_timeout)) : work.deadline);
      break;
    case Concern::Kind::deadline:
      detector_->investigate(
          operation, std::nullopt, [&] { return !driver_.closing() && !work.done(); }, work.deadline);
      break;
    case Concern::Kind::probe:
      detector_->watch(operation, [&] {
        interrupted = driver_.closing() || work.done() || driver_.urgent();
        return !interrupted;
      });
      driver_.probed(work, interrupted);
      break;
  }
  const auto verdict = detector_->verdict();
  if (!verdict) return;
  // not in the verdict, which is the same on all ranks
  if (!concern.times.empty() && verdict->code() == ErrorCode::timeout) {
    base::log(base::LogLevel::warning, "group '{}', {}: {}", members_.name, work.description(), concern.times);
  }
  driver_.fail();
}

}  // namespace ddp::collectives
