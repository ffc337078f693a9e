#include "diagnostics/hang/rank_observer.hpp"

#include <exception>
#include <mutex>
#include <utility>

#include "base/library_thread.hpp"
#include "base/wake_event.hpp"
#include "diagnostics/hang/nccl_ras.hpp"
#include "diagnostics/hang/observe.hpp"
#include "diagnostics/hang/torch_recorder.hpp"

namespace ddp::diagnostics {

struct RankObserver::Shared {
  base::WakeEvent ready;
  std::mutex mutex;  ///< for what follows
  std::optional<HostFacts> facts;
};

RankObserver::RankObserver(std::vector<FoundRank> ranks, std::string host, Deadline deadline)
    : deadline_(deadline), host_(std::move(host)), shared_(std::make_shared<Shared>()) {
  base::start_thread([shared = shared_, name = host_, found = std::move(ranks), deadline] {
    HostFacts facts{.host = name};
    try {
      facts = observe_ranks("/proc", name, found, {});
      ask_torch("/proc", facts, deadline);
      ask_nccl("/proc", facts, deadline);
    } catch (const std::exception& error) {
      facts.notes.emplace_back(error.what());
    }
    const std::lock_guard lock(shared->mutex);
    shared->facts = std::move(facts);
    shared->ready.ring();
  }).detach();
}

int RankObserver::fd() const { return shared_->ready.fd(); }

std::optional<HostFacts> RankObserver::take() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->facts) return std::move(shared_->facts);
  if (!deadline_.expired()) return std::nullopt;
  return HostFacts{.host = host_, .notes = {"/proc did not answer in time: ps -eo pid,stat,wchan shows D"}};
}

}  // namespace ddp::diagnostics
