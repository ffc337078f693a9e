// How one side of a control connection proves to the other that it belongs to the same job or user.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include <ddp/bytes.hpp>

#include "control/greeting.hpp"
#include "control/secret.hpp"

namespace ddp::launcher::control {

/// Both sides of a connection use the same kind. prove() and check() may be called from one thread at a time.
class Prover {
 public:
  virtual ~Prover() = default;

  virtual Announcement announcement() const = 0;
  /// At most kMaxProofBytes. Throws Error.
  virtual Bytes prove(const Statement& statement) = 0;
  /// Throws Error(conflict) unless the other side has proven @p statement.
  virtual void check(std::span<const std::byte> proof, const Statement& statement) = 0;
  /// Whether they ask another process, and may take seconds.
  virtual bool slow() const { return false; }

  /// What the other side does not accept: "this node's DDP_RDZV_SECRET".
  virtual std::string what() const = 0;
  /// For the user whose nodes do not accept each other.
  virtual std::string hint() const = 0;
};

/// Of the connecting side, for what the other announces. Throws Error(conflict), with a hint, where this side cannot or
/// must not prove itself in this way.
using Provers = std::function<std::shared_ptr<Prover>(const Announcement& announcement)>;

/// Both sides know the same secret: HMAC-SHA-512-256 (libsodium's crypto_auth) of the statement.
class SecretProver : public Prover {
 public:
  /// @param name of the secret: "secret", "DDP_RDZV_SECRET"
  SecretProver(Announcement announcement, const Secret& secret, std::string name, std::string hint)
      : announcement_(announcement), secret_(secret), name_(std::move(name)), hint_(std::move(hint)) {}

  Announcement announcement() const override { return announcement_; }
  Bytes prove(const Statement& statement) override;
  void check(std::span<const std::byte> proof, const Statement& statement) override;
  std::string what() const override { return "this node's " + name_; }
  std::string hint() const override { return hint_; }

 private:
  Announcement announcement_;
  Secret secret_;
  std::string name_;
  std::string hint_;
};

/// For agents that have got a job's random secret.
std::shared_ptr<Prover> job_secret_prover(const Secret& secret);
Provers job_secret_provers(const Secret& secret);

}  // namespace ddp::launcher::control
