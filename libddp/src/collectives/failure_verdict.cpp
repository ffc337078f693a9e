#include "collectives/failure_verdict.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

namespace ddp::collectives {
namespace {

using Ranks = std::vector<int>;

/// World ranks, by what is known of them.
struct Evidence {
  Ranks gone;
  Ranks left;  ///< the group first, and then their processes ended
  Ranks silent;
  std::chrono::milliseconds silence = std::chrono::milliseconds::max();  ///< the shortest of theirs
  std::set<std::string> silent_hosts;                                    ///< their addresses
  Ranks outside;                                                         ///< alive, but they do not know the group
  Ranks behind;   ///< have not called the operation, and are not held up in an earlier one
  Ranks slow;     ///< they run, and did not answer
  Ranks held_up;  ///< have not called it because they wait in an earlier one
  std::optional<std::pair<int, LongTransfer>> holds_up;  ///< a transfer, and who waits in it: of these ranks
  std::map<std::uint64_t, Ranks> by_fingerprint;
  std::map<std::uint64_t, std::string> called;
  std::optional<Error> verdict;  ///< of another member
};

Evidence collect(const GroupMembers& members, const Operation& operation, const std::vector<MemberReply>& replies) {
  Evidence evidence;
  evidence.by_fingerprint[operation.fingerprint()].push_back(members.global(members.rank));
  evidence.called[operation.fingerprint()] = operation.description();
  for (const MemberReply& reply : replies) {
    using Kind = world::PeerReply::Kind;
    const int rank = members.global(reply.rank);
    if (!reply.status) {
      switch (reply.kind) {
        case Kind::refused: (reply.left ? evidence.left : evidence.gone).push_back(rank); break;
        case Kind::failed:
        case Kind::answered: evidence.outside.push_back(rank); break;
        case Kind::no_answer:
        case Kind::unreachable:
          if (reply.runs) {
            evidence.slow.push_back(rank);
            break;
          }
          evidence.silent.push_back(rank);
          evidence.silence = std::min(evidence.silence, reply.silence);
          if (const auto member = static_cast<std::size_t>(reply.rank); member < members.endpoints.size()) {
            evidence.silent_hosts.insert(members.endpoints[member].address);
          }
          break;
        case Kind::hung_up:
        case Kind::busy:
        case Kind::not_asked: break;  // no evidence
      }
    } else if (reply.status->verdict) {
      evidence.verdict = reply.status->verdict;
      break;
    } else if (operation.sequence > reply.status->last_issued) {
      std::optional<LongTransfer> transfer = reply.status->transfer;
      if (transfer && (transfer->peer < 0 || transfer->peer >= members.size())) transfer.reset();
      (reply.status->waits || transfer ? evidence.held_up : evidence.behind).push_back(rank);
      if (transfer && !evidence.holds_up) evidence.holds_up.emplace(rank, *transfer);
    } else if (operation.sequence != 0 && reply.status->fingerprint != 0) {
      evidence.by_fingerprint[reply.status->fingerprint].push_back(rank);
      evidence.called[reply.status->fingerprint] = reply.status->description;
    }
  }
  // where ranks need not wait for all in each collective, some are late because another is
  if (evidence.behind.empty()) {
    evidence.behind = std::move(evidence.held_up);
  } else {
    evidence.holds_up.reset();
  }
  return evidence;
}

void describe_mismatch(ErrorDetail& detail, Evidence& evidence) {
  detail.code = ErrorCode::mismatch;
  detail.cause = "the ranks called different things";
  std::vector<std::pair<int, std::uint64_t>> order;
  for (const auto& [fingerprint, ranks] : evidence.by_fingerprint) order.emplace_back(ranks.front(), fingerprint);
  std::sort(order.begin(), order.end());
  for (const auto& [first, fingerprint] : order) {
    Ranks& ranks = evidence.by_fingerprint[fingerprint];
    std::sort(ranks.begin(), ranks.end());
    detail.cause += fmt::format("; {}: {}", format_ranks(ranks), evidence.called[fingerprint]);
    detail.ranks.insert(detail.ranks.end(), ranks.begin(), ranks.end());
  }
  std::sort(detail.ranks.begin(), detail.ranks.end());
  detail.hint =
      "every rank must call the same collectives in the same order with the same sizes, types, operation and root";
}

void describe_loss(ErrorDetail& detail, const Evidence& evidence) {
  detail.code = ErrorCode::peer_lost;
  const auto add = [&detail](const Ranks& ranks, const std::string& what) {
    if (ranks.empty()) return;
    detail.cause += fmt::format("{}{} {}", detail.cause.empty() ? "" : "; ", format_ranks(ranks), what);
    detail.ranks.insert(detail.ranks.end(), ranks.begin(), ranks.end());
  };
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(evidence.silence);
  add(evidence.gone, "died or left the group");
  add(evidence.left, fmt::format("left the group and {} ended", evidence.left.size() == 1 ? "has" : "have"));
  const std::set<std::string>& hosts = evidence.silent_hosts;
  const std::string host = hosts.empty()       ? "host"
                           : hosts.size() == 1 ? "host " + *hosts.begin()
                                               : fmt::format("{} hosts from {} on", hosts.size(), *hosts.begin());
  add(evidence.silent, fmt::format("gave no sign of life{} (stopped, {} down, or network cut)",
                                   seconds.count() > 0 ? fmt::format(" for {} s", seconds.count()) : "", host));
  std::sort(detail.ranks.begin(), detail.ranks.end());
  detail.hint = "look at the last output of the ranks named, and at the launcher's report";
}

/// @param peer of the world, @p waiter too.
void describe_transfer(ErrorDetail& detail, bool receives, int waiter, int peer) {
  detail.cause =
      receives ? fmt::format("rank {} is alive but sent rank {} nothing for it before the deadline", peer, waiter)
               : fmt::format("rank {} is alive but did not take it from rank {} before the deadline", peer, waiter);
  detail.ranks = {peer};
  detail.hint =
      "the peer's call must have the same tag, element type and count; where a call takes the sizes of all "
      "ranks' parts, both ranks must give the same";
}

void describe_delay(ErrorDetail& detail, const Evidence& evidence) {
  const auto be = [](const Ranks& ranks) { return ranks.size() == 1 ? "is" : "are"; };
  if (!evidence.behind.empty()) {
    detail.cause = fmt::format("{} did not call it before the deadline, but {} alive", format_ranks(evidence.behind),
                               be(evidence.behind));
    detail.ranks = evidence.behind;
    detail.hint = "these ranks do something else or left the loop early; a longer deadline may help";
  }
  if (!evidence.slow.empty()) {
    detail.cause += fmt::format("{}{} {} too slow to answer before the deadline, but not stopped",
                                detail.cause.empty() ? "" : "; ", format_ranks(evidence.slow), be(evidence.slow));
    detail.ranks.insert(detail.ranks.end(), evidence.slow.begin(), evidence.slow.end());
    detail.hint = "look at the load of their nodes: processors, memory, disks; a longer deadline may help";
  }
  std::sort(detail.ranks.begin(), detail.ranks.end());
}

}  // namespace

Error communication_failure(const Operation& operation, std::string native, std::vector<int> ranks) {
  return Error{{.code = ErrorCode::system,
                .attempted = operation.description(),
                .cause = "communication failed, and no other rank is known to be lost",
                .native = std::move(native),
                .ranks = std::move(ranks),
                .hint = "look for network errors on the hosts, and for limits on open files"}};
}

Error unfit_message(const GroupMembers& members, const UnfitMessage& message) {
  const Operation& receive = message.receive;
  const int own = members.global(members.rank);
  const int sender = members.global(receive.root);
  const std::string sent = fmt::format("{} x {}", to_string(message.sent), message.count);
  const bool rows = receive.row != 0 && message.sent == receive.dtype && message.count % receive.row == 0 &&
                    receive.count % receive.row == 0;
  std::string cause = fmt::format("rank {} sent {} to rank {}", sender, sent, own);
  if (rows) {
    cause = fmt::format("rank {} sent {} rows ({}) to rank {}, which expects {}", sender, message.count / receive.row,
                        sent, own, receive.count / receive.row);
  }
  return Error{{.code = ErrorCode::mismatch,
                .attempted = receive.description(),
                .cause = std::move(cause),
                .ranks = {std::min(sender, own), std::max(sender, own)},
                .hint = receive.part_of != nullptr
                            ? "what each rank sends another must be what that one expects from it"
                            : "a receive must have the element type and count of the send that it matches"}};
}

std::optional<Error> judge(const GroupMembers& members, const Operation& operation,
                           const std::optional<Error>& local_failure, const std::vector<MemberReply>& replies) {
  Evidence evidence = collect(members, operation, replies);
  if (evidence.verdict) return evidence.verdict;
  ErrorDetail detail{.code = ErrorCode::timeout,
                     .attempted = operation.description(),
                     .native = local_failure ? local_failure->native() : std::string()};
  // A different call is a proof, while a rank that is gone may have left because of it.
  if (evidence.by_fingerprint.size() > 1) {
    describe_mismatch(detail, evidence);
  } else if (local_failure && local_failure->code() == ErrorCode::mismatch) {
    return local_failure;
  } else if (!evidence.gone.empty() || !evidence.left.empty() || !evidence.silent.empty()) {
    describe_loss(detail, evidence);
  } else if (!evidence.outside.empty()) {
    detail.code = ErrorCode::peer_lost;
    detail.cause = fmt::format("{} {} alive but not in the group: left it, or has not joined it yet",
                               format_ranks(evidence.outside), evidence.outside.size() == 1 ? "is" : "are");
    detail.ranks = evidence.outside;
  } else if (local_failure) {
    return std::nullopt;
  } else if (evidence.holds_up && evidence.slow.empty()) {
    const auto& [waiter, transfer] = *evidence.holds_up;
    detail.attempted = transfer.description;
    describe_transfer(detail, transfer.receives, waiter, members.global(transfer.peer));
  } else if (!evidence.behind.empty() || !evidence.slow.empty()) {
    describe_delay(detail, evidence);
  } else if (operation.is_transfer()) {
    describe_transfer(detail, operation.kind == OperationKind::recv, members.global(members.rank),
                      members.global(operation.root));
  } else {
    detail.cause = "all ranks are alive and in it, but the data did not arrive before the deadline";
    detail.hint = "the network is slow or drops packets between some ranks, or the deadline is too short for the size";
  }
  return Error{std::move(detail)};
}

}  // namespace ddp::collectives
