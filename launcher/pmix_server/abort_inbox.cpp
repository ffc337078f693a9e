#include "pmix_server/abort_inbox.hpp"

#include <utility>

namespace ddp::launcher {

void AbortInbox::post(AbortMessage message) {
  const std::lock_guard lock{mutex_};
  messages_.push_back(std::move(message));
  event_.ring();
}

std::vector<AbortMessage> AbortInbox::take() {
  const std::lock_guard lock{mutex_};
  event_.clear();
  return std::exchange(messages_, {});
}

}  // namespace ddp::launcher
