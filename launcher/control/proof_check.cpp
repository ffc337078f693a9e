#include "control/proof_check.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/library_thread.hpp"
#include "base/unique_fd.hpp"

namespace ddp::launcher::control {

ProofVerdict judge(Prover& prover, const ProofCheck& check) {
  try {
    prover.check(check.proof, check.theirs);
    return {.number = check.number, .own_proof = prover.prove(check.ours)};
  } catch (const Error& error) {
    const std::string native = error.native().empty() ? "" : fmt::format(" [{}]", error.native());
    const std::string hint = error.hint().empty() ? "" : fmt::format("; {}", error.hint());
    return {.number = check.number, .refusal = error.cause() + native + hint};
  }
}

struct ProofThread::State {
  const std::shared_ptr<Prover> prover;
  const base::WakeEvent wake;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<ProofCheck> checks;
  std::vector<ProofVerdict> verdicts;
  bool over = false;

  explicit State(std::shared_ptr<Prover> given) : prover(std::move(given)) {}

  void run() {
    std::unique_lock lock{mutex};
    for (;;) {
      changed.wait(lock, [this] { return over || !checks.empty(); });
      if (over) return;
      const ProofCheck check = std::move(checks.front());
      checks.pop_front();
      lock.unlock();
      ProofVerdict verdict = judge(*prover, check);
      lock.lock();
      verdicts.push_back(std::move(verdict));
      wake.ring();
    }
  }
};

ProofThread::ProofThread(std::shared_ptr<Prover> prover) : state_(std::make_shared<State>(std::move(prover))) {
  base::start_thread([state = state_] { state->run(); }).detach();
}

ProofThread::~ProofThread() {
  const std::lock_guard lock{state_->mutex};
  state_->over = true;
  state_->changed.notify_one();
}

void ProofThread::ask(ProofCheck check) {
  const std::lock_guard lock{state_->mutex};
  state_->checks.push_back(std::move(check));
  state_->changed.notify_one();
}

void ProofThread::forget(std::uint64_t number) {
  const std::lock_guard lock{state_->mutex};
  std::erase_if(state_->checks, [&](const ProofCheck& check) { return check.number == number; });
}

int ProofThread::fd() const { return state_->wake.fd(); }

std::vector<ProofVerdict> ProofThread::take() {
  const std::lock_guard lock{state_->mutex};
  state_->wake.clear();
  return std::exchange(state_->verdicts, {});
}

}  // namespace ddp::launcher::control
