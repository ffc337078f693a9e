// MUNGE: credentials that prove, on every host with the same munge.key, which user has made them. libmunge is opened
// when it is needed, so ddprun runs where it is missing.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include <ddp/bytes.hpp>

#include "stream/handshake.hpp"

namespace ddp::launcher::control {

/// Thread-safe. Its calls take less than a millisecond; libmunge gives up on a munged that is gone after 2 s, on one
/// that hangs after 10 s.
class Munge {
 public:
  /// @param socket of munged; empty: libmunge's default. Throws Error(unavailable) where munged does not answer.
  explicit Munge(std::string socket);

  /// This process's user, as munged sees it: in a user namespace it may have another number.
  uid_t user() const { return user_; }

  /// That this user alone can open. Throws Error(unavailable).
  Bytes seal(std::span<const std::byte> payload) const;

  struct Opened {
    Bytes payload;
    uid_t user = 0;
  };
  /// Each credential can be opened once on a host. Throws Error: conflict, with munge's code by name, for one that is
  /// not valid (any more); unavailable where munged does not answer.
  Opened open(std::span<const std::byte> credential) const;

 private:
  std::string socket_;
  uid_t user_;
};

/// A credential of the statement, which this user alone can open.
class MungeProver : public stream::Prover {
 public:
  explicit MungeProver(Munge munge) : munge_(std::move(munge)) {}

  stream::Announcement announcement() const override { return {.method = stream::ProofMethod::munge}; }
  Bytes prove(const stream::Statement& statement) override { return munge_.seal(statement); }
  void check(std::span<const std::byte> proof, const stream::Statement& statement) override;
  bool slow() const override { return true; }
  std::string what() const override { return "this node's munge credential"; }
  std::string hint() const override {
    return "all nodes need the same user, munge.key and time; the coordinator's ddprun says which differs";
  }

 private:
  Munge munge_;
};

}  // namespace ddp::launcher::control
