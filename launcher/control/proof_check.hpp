// What a listener does with an agent's proof: check it, and make its own. Where that asks another process, a thread
// does it, so that a munged that hangs does not hold up a job.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>

#include "control/prover.hpp"

namespace ddp::launcher::control {

struct ProofCheck {
  std::uint64_t number = 0;  ///< of the connection
  Bytes proof;
  Statement theirs{};
  Statement ours{};
};

struct ProofVerdict {
  std::uint64_t number = 0;
  Bytes own_proof{};      ///< where theirs holds
  std::string refusal{};  ///< else why not
};

/// Throws nothing that is an Error.
ProofVerdict judge(Prover& prover, const ProofCheck& check);

/// Checks one after the other.
class ProofThread {
 public:
  explicit ProofThread(std::shared_ptr<Prover> prover);
  ProofThread(const ProofThread&) = delete;
  ProofThread& operator=(const ProofThread&) = delete;
  /// Does not wait for the thread, which may hang for seconds.
  ~ProofThread();

  void ask(ProofCheck check);
  /// The connection is gone: its check is not made any more, unless it has begun.
  void forget(std::uint64_t number);
  int fd() const;  ///< readable when take() has something
  std::vector<ProofVerdict> take();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddp::launcher::control
