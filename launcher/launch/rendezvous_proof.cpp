#include "launch/rendezvous_proof.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sodium.h>

#include "base/errors.hpp"
#include "base/unique_fd.hpp"
#include "control/munge.hpp"
#include "launch/job_file.hpp"
#include "launch/launch_role.hpp"

namespace ddp::launcher {
namespace {

[[noreturn]] void reject_point(const std::string& cause) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = fmt::format("reading {}", kAgentVariable),
               .cause = cause,
               .hint = "ddprun sets it for the agents that it starts; unset it elsewhere"}};
}

}  // namespace

std::string RendezvousPoint::encode() const {
  return fmt::format("{};{};{}{}{}", fmt::join(addresses, ","), port, secret.to_hex(), host.empty() ? "" : ";", host);
}

RendezvousPoint RendezvousPoint::decode(const std::string& text) {
  const auto first = text.find(';');
  const auto second = text.find(';', first == std::string::npos ? first : first + 1);
  if (second == std::string::npos) reject_point("it does not have three parts");
  const auto third = std::min(text.find(';', second + 1), text.size());
  RendezvousPoint point{.port = 0,
                        .secret = control::Secret::from_hex(text.substr(second + 1, third - second - 1)),
                        .host = third < text.size() ? text.substr(third + 1) : std::string()};
  const std::string list = text.substr(0, first);
  for (std::size_t begin = 0; begin < list.size();) {
    const auto comma = std::min(list.find(',', begin), list.size());
    if (comma > begin) point.addresses.push_back(list.substr(begin, comma - begin));
    begin = comma + 1;
  }
  const std::string port = text.substr(first + 1, second - first - 1);
  const auto [end, status] = std::from_chars(port.data(), port.data() + port.size(), point.port);
  if (status != std::errc{} || end != port.data() + port.size() || point.port == 0)
    reject_point(fmt::format("'{}' is not a port", port));
  if (point.addresses.empty()) reject_point("it names no address");
  return point;
}

namespace {

using control::Announcement;
using control::ProofMethod;

constexpr const char* kAttempted = "proving to the job's other nodes who started them";
constexpr const char* kPhrase = kPhraseVariable;

std::string with_native(const Error& error) {
  return error.native().empty() ? error.cause() : fmt::format("{} [{}]", error.cause(), error.native());
}

[[noreturn]] void refuse_proof(ErrorCode code, std::string cause, std::string hint) {
  throw Error{{.code = code, .attempted = kAttempted, .cause = std::move(cause), .hint = std::move(hint)}};
}

}  // namespace

RendezvousProof::RendezvousProof(base::Environment environment, bool insecure, std::string host)
    : environment_(std::move(environment)),
      insecure_(insecure),
      host_(std::move(host)),
      phrase_(environment_.text(kPhrase)) {
  stream::ensure_sodium();
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
    refuse_proof(ErrorCode::unavailable,
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
    refuse_proof(ErrorCode::conflict, "the coordinator's ddprun lets anyone join, this one does not",
                 "give --rdzv-insecure on all nodes, or on none");
  }
  if (method == ProofMethod::phrase && phrase_.empty())
    refuse_proof(ErrorCode::conflict,
                 fmt::format("the coordinator's ddprun has {}, which is not set on {}", kPhrase, host_),
                 fmt::format("set {} to the same phrase on all nodes, or on none", kPhrase));
  if (method != ProofMethod::phrase && !phrase_.empty())
    refuse_proof(ErrorCode::conflict,
                 fmt::format("{} is set on {}, but not for the coordinator's ddprun", kPhrase, host_),
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
    refuse_proof(
        ErrorCode::conflict,
        fmt::format("the coordinator's ddprun uses {}, but on {}: {}{}", name, host_, attempted, with_native(error)),
        error.hint().empty() || method == ProofMethod::munge ? hint : error.hint());
  }
  refuse_proof(ErrorCode::conflict, "the coordinator's ddprun belongs to a job of Slurm's", "choose another port");
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

namespace {

constexpr std::size_t kDigits = 64;

[[noreturn]] void refuse_file(const std::string& path, std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::conflict,
               .attempted = fmt::format("reading the key file '{}'", path),
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

/// Nothing: there is none.
std::optional<stream::Secret> read_existing(const std::string& path) {
  const base::UniqueFd file =
      open_private_file(path, fmt::format("reading the key file '{}'", path), "remove it; ddprun makes it anew",
                        "they may know the key: remove it, and ddprun makes it anew");
  if (!file) return std::nullopt;
  std::array<char, kDigits + 2> text{};
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size < 0) throw base::system_error(fmt::format("reading the key file '{}'", path), errno);
  std::string_view digits{text.data(), static_cast<std::size_t>(size)};
  if (digits.ends_with('\n')) digits.remove_suffix(1);
  try {
    return stream::Secret::from_hex(std::string{digits});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    refuse_file(path, fmt::format("it does not hold {} hexadecimal digits", kDigits),
                "remove it; ddprun makes it anew");
  }
}

}  // namespace

std::string key_file_path(const base::Environment& environment) {
  const auto config = environment.raw("XDG_CONFIG_HOME");
  if (config && config->starts_with('/')) return *config + "/libddp/rendezvous.key";
  const std::string home = users_home(environment);
  if (!home.empty()) return home + "/.config/libddp/rendezvous.key";
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "looking for the user's key file",
               .cause = "this user has no home folder, and HOME is not set"}};
}

stream::Secret read_key_file(const std::string& path) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (auto secret = read_existing(path)) return *std::move(secret);
    write_private_file(path, stream::Secret::random().to_hex() + "\n", fmt::format("making the key file '{}'", path),
                       IfThere::keep);
  }
  if (auto secret = read_existing(path)) return *std::move(secret);
  refuse_file(path, "it is removed again and again", {});
}

}  // namespace ddp::launcher
