// Proof that both sides of a control connection are processes of the same user, by munge.
#pragma once

#include <memory>
#include <string>

#include "control/munge.hpp"
#include "control/prover.hpp"

namespace ddp::launcher::control {

/// A credential of the statement, which this user alone can open.
class MungeProver : public Prover {
 public:
  explicit MungeProver(Munge munge) : munge_(std::move(munge)) {}

  Announcement announcement() const override { return {.method = ProofMethod::munge}; }
  Bytes prove(const Statement& statement) override { return munge_.seal(statement); }
  void check(std::span<const std::byte> proof, const Statement& statement) override;
  bool slow() const override { return true; }
  std::string what() const override { return "this node's munge credential"; }
  std::string hint() const override {
    return "all nodes need the same user, munge.key and time; the coordinator's ddprun says which differs";
  }

 private:
  Munge munge_;
};

}  // namespace ddp::launcher::control
