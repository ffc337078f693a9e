#include "launch/rendezvous_proof.hpp"

#include <sodium.h>

#include <utility>

#include <fmt/format.h>

#include "control/munge_prover.hpp"
#include "launch/key_file.hpp"

namespace ddp::launcher {
namespace {

using control::Announcement;
using control::ProofMethod;

constexpr const char* kAttempted = "proving to the job's other nodes who started them";
constexpr const char* kPhrase = "DDP_RDZV_SECRET";

std::string with_native(const Error& error) {
  return error.native().empty() ? error.cause() : fmt::format("{} [{}]", error.cause(), error.native());
}

[[noreturn]] void refuse(ErrorCode code, std::string cause, std::string hint) {
  throw Error{{.code = code, .attempted = kAttempted, .cause = std::move(cause), .hint = std::move(hint)}};
}

}  // namespace

RendezvousProof::RendezvousProof(base::Environment environment, bool insecure, std::string host)
    : environment_(std::move(environment)),
      insecure_(insecure),
      host_(std::move(host)),
      phrase_(environment_.text(kPhrase)) {
  control::ensure_sodium();
}

std::shared_ptr<control::Prover> RendezvousProof::leader() {
  if (insecure_) return none();
  if (!phrase_.empty()) {
    control::Salt salt{};
    ::randombytes_buf(salt.data(), salt.size());
    return phrase(salt);
  }
  std::string why;
  try {
    return munge();
  } catch (const Error& error) {
    why = fmt::format("there is no munge ({}), {} is not set", with_native(error), kPhrase);
  }
  try {
    return key_file();
  } catch (const Error& error) {
    refuse(ErrorCode::unavailable,
           fmt::format("{}, and {} fails: {}{}", why, error.attempted(), with_native(error),
                       error.hint().empty() ? "" : fmt::format(" ({})", error.hint())),
           fmt::format("start munged, set {} to the same random phrase on all nodes, or correct the key file; "
                       "--rdzv-insecure lets anyone join",
                       kPhrase));
  }
}

std::shared_ptr<control::Prover> RendezvousProof::follower(const Announcement& announcement) {
  const ProofMethod method = announcement.method;
  if (method == ProofMethod::none) {
    if (insecure_) return none();
    refuse(ErrorCode::conflict, "the coordinator's ddprun lets anyone join, this one does not",
           "give --rdzv-insecure on all nodes, or on none");
  }
  if (method == ProofMethod::phrase && phrase_.empty())
    refuse(ErrorCode::conflict, fmt::format("the coordinator's ddprun has {}, which is not set on {}", kPhrase, host_),
           fmt::format("set {} to the same phrase on all nodes, or on none", kPhrase));
  if (method != ProofMethod::phrase && !phrase_.empty())
    refuse(ErrorCode::conflict, fmt::format("{} is set on {}, but not for the coordinator's ddprun", kPhrase, host_),
           fmt::format("set {} to the same phrase on all nodes, or on none", kPhrase));
  std::string name;
  std::string hint;
  try {
    switch (method) {
      case ProofMethod::phrase: name = kPhrase; return phrase(announcement.salt);
      case ProofMethod::key_file:
        name = "the user's key file";
        hint = fmt::format(
            "copy the file from the coordinator's host, or set {} to the same random phrase on all nodes", kPhrase);
        return key_file();
      case ProofMethod::munge:
        name = "munge";
        hint = fmt::format("start munged on {}, or set {} to the same random phrase on all nodes", host_, kPhrase);
        return munge();
      default: break;
    }
  } catch (const Error& error) {
    const std::string attempted = method == ProofMethod::munge ? "" : error.attempted() + ": ";
    refuse(ErrorCode::conflict,
           fmt::format("the coordinator's ddprun uses {}, but on {}: {}{}", name, host_, attempted, with_native(error)),
           error.hint().empty() || method == ProofMethod::munge ? hint : error.hint());
  }
  refuse(ErrorCode::conflict, "the coordinator's ddprun belongs to a job of Slurm's", "choose another port");
}

std::shared_ptr<control::Prover> RendezvousProof::phrase(const control::Salt& salt) {
  if (!phrase_prover_ || phrase_prover_->announcement().salt != salt)
    phrase_prover_ = std::make_shared<control::SecretProver>(Announcement{.method = ProofMethod::phrase, .salt = salt},
                                                             control::Secret::from_phrase(phrase_, salt), kPhrase,
                                                             fmt::format("all nodes need the same {}", kPhrase));
  return phrase_prover_;
}

std::shared_ptr<control::Prover> RendezvousProof::munge() {
  if (munge_failure_) throw *munge_failure_;
  if (munge_) return munge_;
  try {
    munge_ = std::make_shared<control::MungeProver>(control::Munge{environment_.text("DDP_MUNGE_SOCKET")});
  } catch (const Error& error) {
    munge_failure_ = error;
    throw;
  }
  return munge_;
}

std::shared_ptr<control::Prover> RendezvousProof::key_file() {
  const std::string path = key_file_path(environment_);
  return std::make_shared<control::SecretProver>(
      Announcement{.method = ProofMethod::key_file}, read_key_file(path), fmt::format("key file '{}'", path),
      fmt::format("all nodes need the same key file: share the home folder, or copy it; or set {}", kPhrase));
}

std::shared_ptr<control::Prover> RendezvousProof::none() {
  return std::make_shared<control::SecretProver>(Announcement{.method = ProofMethod::none},
                                                 control::Secret::from_hex(std::string(64, '0')), "version", "");
}

}  // namespace ddp::launcher
