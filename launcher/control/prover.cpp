#include "control/prover.hpp"

#include <sodium.h>

#include <ddp/error.hpp>

namespace ddp::launcher::control {

Bytes SecretProver::prove(const Statement& statement) {
  Bytes proof(crypto_auth_BYTES);
  ::crypto_auth(reinterpret_cast<unsigned char*>(proof.data()),
                reinterpret_cast<const unsigned char*>(statement.data()), statement.size(), secret_.bytes().data());
  return proof;
}

void SecretProver::check(std::span<const std::byte> proof, const Statement& statement) {
  // crypto_auth_verify takes the same time for all wrong proofs.
  if (proof.size() == crypto_auth_BYTES &&
      ::crypto_auth_verify(reinterpret_cast<const unsigned char*>(proof.data()),
                           reinterpret_cast<const unsigned char*>(statement.data()), statement.size(),
                           secret_.bytes().data()) == 0)
    return;
  throw Error{{.code = ErrorCode::conflict,
               .attempted = "checking who is at the other end",
               .cause = "it does not know the job's " + name_,
               .hint = hint_}};
}

std::shared_ptr<Prover> job_secret_prover(const Secret& secret) {
  return std::make_shared<SecretProver>(Announcement{.method = ProofMethod::job_secret}, secret, "secret",
                                        "is it another job's port?");
}

Provers job_secret_provers(const Secret& secret) {
  return [prover = job_secret_prover(secret)](const Announcement& announcement) {
    if (announcement.method == ProofMethod::job_secret) return prover;
    throw Error{{.code = ErrorCode::conflict,
                 .attempted = "proving that this node belongs to the job",
                 .cause = "the other side does not ask for the job's secret",
                 .hint = prover->hint()}};
  };
}

}  // namespace ddp::launcher::control
