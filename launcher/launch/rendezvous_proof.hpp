// How ddpruns that are started by hand prove to each other that one user has started them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "control/handshake.hpp"
#include "stream/secret.hpp"

namespace ddp::launcher {

// Where the coordinator of a job is, and the secret that proves who may talk to it.

/// Where the coordinator is.
struct RendezvousPoint {
  std::vector<std::string> addresses{};  ///< numeric or names, best first
  std::uint16_t port = 0;
  control::Secret secret;
  std::string host{};  ///< the coordinator's, for messages; empty: not known

  /// For an environment variable: "addr,addr;port;secret;host", the last part optional. decode() throws
  /// Error(invalid_argument).
  std::string encode() const;
  static RendezvousPoint decode(const std::string& text);
};

inline constexpr const char* kPhraseVariable = "DDP_RDZV_SECRET";

/// The one that leads chooses the first that it has: DDP_RDZV_SECRET, munge, the key file of the user. The others
/// follow it, but for two rules: DDP_RDZV_SECRET, where it is set, is what counts; and no proof at all is for those
/// alone that are told so, too. Asks each source at most once.
class RendezvousProof {
 public:
  /// @param insecure --rdzv-insecure
  RendezvousProof(base::Environment environment, bool insecure, std::string host);

  /// For the one that leads. Throws Error(unavailable), which says why each of the three cannot be used.
  std::shared_ptr<control::Prover> leader();
  /// For the others: see control::Provers.
  std::shared_ptr<control::Prover> follower(const control::Announcement& announcement);

 private:
  using ProverPointer = std::shared_ptr<control::Prover>;
  ProverPointer phrase(const control::Salt& salt);
  ProverPointer munge();
  ProverPointer key_file();
  static ProverPointer none();

  base::Environment environment_;
  bool insecure_;
  std::string host_;
  std::string phrase_;           ///< DDP_RDZV_SECRET; empty: it is not set
  ProverPointer phrase_prover_;  ///< for the salt that was asked for last
  ProverPointer munge_;
  std::optional<Error> munge_failure_;
};

// The user's key file, by which ddpruns of one user know each other where nothing else tells them: nodes see it through
// a shared home folder, or get a copy.

/// "$XDG_CONFIG_HOME/libddp/rendezvous.key", or below "$HOME/.config". Throws Error(unavailable) without a home folder.
std::string key_file_path(const base::Environment& environment);

/// Reads the file: 64 hexadecimal digits. Makes it, with mode 0600 and random, where there is none; all that do so at
/// the same time, on any host, get the same key. Throws Error: system when it cannot be read or made; conflict when
/// another user owns it, when others may read or write it, or when its content is none.
stream::Secret read_key_file(const std::string& path);

}  // namespace ddp::launcher
