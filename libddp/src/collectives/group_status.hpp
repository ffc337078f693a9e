// The messages with which members of a group exchange what they are doing and why the group failed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ddp/error.hpp>

#include "base/message_fields.hpp"

namespace ddp::collectives {

/// "What are you doing, and what was collective number `sequence` on your side?"
struct StatusQuestion {
  std::uint64_t sequence = 0;
  bool neighbours = false;  ///< "And which members on your node run?"
};
constexpr auto description(const StatusQuestion*) {
  return base::describe({"question"}, base::fields<&StatusQuestion::sequence, &StatusQuestion::neighbours>());
}

/// "The group has failed, for this reason."
struct Verdict {
  Error error{ErrorDetail{}};
};
constexpr auto description(const Verdict*) { return base::describe({"verdict"}, base::fields<&Verdict::error>()); }

/// "The group should fail for this reason. Keep it, unless you have been told another before."
struct Proposal {
  Error error{ErrorDetail{}};
};
constexpr auto description(const Proposal*) { return base::describe({"proposal"}, base::fields<&Proposal::error>()); }

/// What one member sends to another unasked.
using GroupMessage = std::variant<StatusQuestion, Verdict, Proposal>;
constexpr auto description(const GroupMessage*) { return base::describe({"message of a process group"}); }

/// What was proposed to it first, or what the members have agreed on.
struct ProposalAnswer {
  bool decided = false;  ///< they have
  Error error{ErrorDetail{}};
};
constexpr auto description(const ProposalAnswer*) {
  return base::describe({"answer to a proposal in a process group"},
                        base::fields<&ProposalAnswer::decided, &ProposalAnswer::error>());
}

/// A send or receive that has been waiting for its peer for long.
struct LongTransfer {
  std::string description;
  int peer = 0;  ///< in the group
  bool receives = false;
};
constexpr auto description(const LongTransfer*) {
  return base::describe({"transfer"},
                        base::fields<&LongTransfer::description, &LongTransfer::peer, &LongTransfer::receives>());
}

struct StatusAnswer {
  std::uint64_t last_issued = 0;
  std::uint64_t fingerprint = 0;  ///< of the collective asked about; 0: not issued yet, or forgotten
  std::string description{};      ///< of it
  bool waits = false;             ///< a collective is under way there, so that it watches the next rank
  std::vector<int> running{};     ///< of the members on its node: their processes run, as the kernel has it; if asked
  std::optional<LongTransfer> transfer{};  ///< in which it waits
  std::optional<Error> verdict{};          ///< why the group has failed on that rank, if it has
};
constexpr auto description(const StatusAnswer*) {
  return base::describe(
      {"status of a process group"},
      base::fields<&StatusAnswer::last_issued, &StatusAnswer::fingerprint, &StatusAnswer::description,
                   &StatusAnswer::waits, &StatusAnswer::running, &StatusAnswer::transfer, &StatusAnswer::verdict>());
}

}  // namespace ddp::collectives
