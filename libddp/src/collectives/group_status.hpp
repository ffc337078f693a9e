// The messages with which members of a group tell each other what they are doing and why the group failed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/error.hpp>

namespace ddp::collectives {

/// "What are you doing, and what was collective number `sequence` on your side?"
struct StatusQuestion {
  std::uint64_t sequence = 0;
  bool neighbours = false;  ///< "And which members on your node run?"
};

/// "The group has failed, for this reason."
struct Verdict {
  Error error;
};

/// "The group should fail for this reason. Keep it, unless you have been told another before."
struct Proposal {
  Error error;
};

/// What was proposed to it first, or what the members have agreed on.
struct ProposalAnswer {
  bool decided = false;  ///< they have
  Error error;
};

/// A send or receive that has been waiting for its peer for long.
struct LongTransfer {
  std::string description;
  int peer = 0;  ///< in the group
  bool receives = false;
};

struct StatusAnswer {
  std::uint64_t last_issued = 0;
  std::uint64_t fingerprint = 0;  ///< of the collective asked about; 0: not issued yet, or forgotten
  std::string description{};      ///< of it
  bool waits = false;             ///< a collective is under way there, so that it watches the next rank
  std::vector<int> running{};     ///< of the members on its node: their processes run, as the kernel has it; if asked
  std::optional<LongTransfer> transfer{};  ///< in which it waits
  std::optional<Error> verdict{};          ///< why the group has failed on that rank, if it has
};

Bytes encode(const StatusQuestion& question);
Bytes encode(const Verdict& verdict);
Bytes encode(const Proposal& proposal);
Bytes encode(const ProposalAnswer& answer);
Bytes encode(const StatusAnswer& answer);

/// Throw Error(protocol) for bytes that are no such message.
std::variant<StatusQuestion, Verdict, Proposal> decode_group_message(std::span<const std::byte> bytes);
ProposalAnswer decode_proposal_answer(std::span<const std::byte> bytes);
StatusAnswer decode_status_answer(std::span<const std::byte> bytes);

}  // namespace ddp::collectives
