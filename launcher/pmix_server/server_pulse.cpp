#include "pmix_server/server_pulse.hpp"

#include <pmix_server.h>

#include "kvs/pmix_handles.hpp"

namespace ddp::launcher {
namespace {

using Answered = std::shared_ptr<std::atomic<bool>>;

// Nobody has it: there is nothing to forget about a rank of it.
constexpr auto kNoNamespace = "ddprun.pulse";

/// On the library's thread.
void answer(pmix_status_t, void* question) {
  const std::unique_ptr<Answered> answered(static_cast<Answered*>(question));
  **answered = true;
}

}  // namespace

void ServerPulse::ask() {
  if (!*answered_) return;
  auto question = std::make_unique<Answered>(answered_);
  *answered_ = false;
  asked_at_ = Deadline::Clock::now();
  const pmix_proc_t nobody = kvs::make_proc(kNoNamespace, 0);
  PMIx_server_deregister_client(&nobody, answer, question.release());
}

std::optional<Deadline::Clock::time_point> ServerPulse::silent_since() const {
  return *answered_ ? std::nullopt : std::optional{asked_at_};
}

}  // namespace ddp::launcher
