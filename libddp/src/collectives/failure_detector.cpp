#include "collectives/failure_detector.hpp"

#include <algorithm>
#include <map>
#include <thread>

#include <fmt/format.h>

#include "base/log.hpp"

namespace ddp {
namespace {

// A connection that breaks while every rank still looks alive belongs to one that is just dying, or that just learned
// of a failure elsewhere: it is asked again, this often, before the network itself is blamed.
constexpr int kAttempts = 5;
constexpr auto kBetweenAttempts = std::chrono::milliseconds(100);
// Telling the others takes milliseconds; this much is kept for it.
constexpr auto kTimeToTell = std::chrono::milliseconds(400);

}  // namespace

FailureDetector::FailureDetector(const GroupMembers& members, const OperationLog& log, std::function<void()> on_verdict)
    : members_(members), log_(log), on_verdict_(std::move(on_verdict)), service_("group/" + members.name) {
  if (members_.channel) {
    members_.channel->serve(service_, [this](std::span<const std::byte> body) { return answer(body); });
  }
}

FailureDetector::~FailureDetector() {
  if (members_.channel) members_.channel->unserve(service_);
}

std::optional<Error> FailureDetector::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

Error FailureDetector::settle(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!verdict_) verdict_ = error;
  return *verdict_;
}

Bytes FailureDetector::answer(std::span<const std::byte> body) {
  const auto message = decode_group_message(body);
  if (const auto* told = std::get_if<Verdict>(&message)) {
    settle(told->error);
    on_verdict_();
    return {};
  }
  const auto sequence = std::get<StatusQuestion>(message).sequence;
  StatusAnswer status{.last_issued = log_.last_issued(),
                      .last_finished = log_.last_finished(),
                      .fingerprint = 0,
                      .description = {},
                      .verdict = verdict()};
  if (const auto entry = log_.find(sequence)) {
    status.fingerprint = entry->fingerprint;
    status.description = entry->operation.description();
  }
  return encode(status);
}

std::vector<FailureDetector::Member> FailureDetector::ask_all(std::uint64_t sequence, Deadline deadline) const {
  std::vector<world::PeerEndpoint> others;
  std::vector<Member> members;
  for (int rank = 0; rank < static_cast<int>(members_.global_ranks.size()); ++rank) {
    if (rank == members_.rank) continue;
    others.push_back(members_.endpoints[static_cast<std::size_t>(rank)]);
    members.push_back({.rank = rank, .reply = {}, .status = {}});
  }
  auto replies = world::ask_peers(others, service_, encode(StatusQuestion{.sequence = sequence}), deadline);
  for (std::size_t i = 0; i < members.size(); ++i) {
    members[i].reply = std::move(replies[i]);
    if (members[i].reply.kind != world::PeerReply::Kind::answered) continue;
    try {
      members[i].status = decode_status_answer(members[i].reply.body);
    } catch (const Error& error) {
      members[i].reply.problem = error.what();
    }
  }
  return members;
}

std::optional<Error> FailureDetector::judge(const Operation& operation, const std::string& local_problem,
                                            const std::vector<Member>& members) const {
  std::vector<int> gone;
  std::vector<int> silent;
  std::vector<int> outside;
  std::vector<int> behind;
  std::map<std::uint64_t, std::vector<int>> by_fingerprint;
  std::map<std::uint64_t, std::string> called;
  by_fingerprint[operation.fingerprint()].push_back(global(members_.rank));
  called[operation.fingerprint()] = operation.description();
  for (const Member& member : members) {
    const int rank = global(member.rank);
    if (!member.status) {
      using Kind = world::PeerReply::Kind;
      if (member.reply.kind == Kind::not_asked) continue;  // nothing is known of it
      (member.reply.kind == Kind::no_answer ? silent
       : member.reply.kind == Kind::failed  ? outside
                                            : gone)
          .push_back(rank);
    } else if (member.status->verdict) {
      return member.status->verdict;
    } else if (operation.sequence > member.status->last_issued) {
      behind.push_back(rank);
    } else if (operation.sequence != 0 && member.status->fingerprint != 0) {
      by_fingerprint[member.status->fingerprint].push_back(rank);
      called[member.status->fingerprint] = member.status->description;
    }
  }
  ErrorDetail detail{.code = ErrorCode::timeout,
                     .attempted = operation.description(),
                     .cause = {},
                     .native = local_problem,
                     .ranks = {},
                     .hint = {}};
  // a different call is a proof, while a rank that is gone may have finished and left because of it
  if (by_fingerprint.size() > 1) {
    detail.code = ErrorCode::mismatch;
    detail.cause = "the ranks called different things";
    std::vector<std::pair<int, std::uint64_t>> order;
    for (const auto& [fingerprint, ranks] : by_fingerprint) order.emplace_back(ranks.front(), fingerprint);
    std::sort(order.begin(), order.end());
    for (const auto& [first, fingerprint] : order) {
      auto& ranks = by_fingerprint[fingerprint];
      std::sort(ranks.begin(), ranks.end());
      detail.cause += fmt::format("; {}: {}", format_ranks(ranks), called[fingerprint]);
      detail.ranks.insert(detail.ranks.end(), ranks.begin(), ranks.end());
    }
    std::sort(detail.ranks.begin(), detail.ranks.end());
    detail.hint =
        "every rank must call the same collectives in the same order with the same sizes, types, operation and root";
    return Error{std::move(detail)};
  }
  if (!gone.empty() || !silent.empty()) {
    detail.code = ErrorCode::peer_lost;
    if (!gone.empty()) detail.cause = fmt::format("{} died or left the group", format_ranks(gone));
    if (!silent.empty()) {
      detail.cause += fmt::format("{}{} gave no sign of life (stopped, host down, or network cut)",
                                  gone.empty() ? "" : "; ", format_ranks(silent));
    }
    detail.ranks = gone;
    detail.ranks.insert(detail.ranks.end(), silent.begin(), silent.end());
    std::sort(detail.ranks.begin(), detail.ranks.end());
    detail.hint = "look at the last output of the ranks named, and at the launcher's report";
    return Error{std::move(detail)};
  }
  if (!outside.empty()) {
    detail.code = ErrorCode::peer_lost;
    detail.cause = fmt::format("{} {} alive but not in the group: left it, or has not joined it yet",
                               format_ranks(outside), outside.size() == 1 ? "is" : "are");
    detail.ranks = outside;
    return Error{std::move(detail)};
  }
  if (!behind.empty() && local_problem.empty()) {
    detail.cause = fmt::format("{} did not call it before the deadline, but {} alive", format_ranks(behind),
                               behind.size() == 1 ? "is" : "are");
    detail.ranks = behind;
    detail.hint = "these ranks do something else or left the loop early; a longer deadline may help";
    return Error{std::move(detail)};
  }
  if (!local_problem.empty()) return std::nullopt;  // all alive and in step, and still something broke: ask again
  if (operation.is_transfer()) {
    detail.cause = fmt::format("rank {} is alive but did not match it before the deadline", global(operation.root));
    detail.ranks = {global(operation.root)};
    detail.hint = "the peer's call must have the same tag, element type and count";
  } else {
    detail.cause = "all ranks are alive and in it, but the data did not arrive before the deadline";
    detail.hint = "the network is slow or drops packets between some ranks, or the deadline is too short for the size";
  }
  return Error{std::move(detail)};
}

void FailureDetector::tell(const Error& error, const std::vector<Member>& members, Deadline deadline) const {
  std::vector<world::PeerEndpoint> listening;
  for (const Member& member : members) {
    if (member.status && !member.status->verdict) {
      listening.push_back(members_.endpoints[static_cast<std::size_t>(member.rank)]);
    }
  }
  world::ask_peers(listening, service_, encode(Verdict{.error = error}), deadline);
}

std::optional<Error> FailureDetector::investigate(const Operation& operation, const std::string& local_problem,
                                                  const std::function<bool()>& still_running, Deadline deadline) {
  const std::lock_guard one_at_a_time(investigation_);
  const Deadline least = Deadline::after(kLeastTime);
  if (deadline < least) deadline = least;
  std::optional<Error> error;
  std::vector<Member> members;
  for (int attempt = 1;; ++attempt) {
    if (const auto known = verdict()) return known;
    // half of the time for asking, so that there is time left to tell
    members = ask_all(operation.sequence, Deadline::after(deadline.remaining() / 2));
    if (const auto known = verdict()) return known;
    if (!still_running()) return std::nullopt;
    error = judge(operation, local_problem, members);
    // a rank that is late may come, and one that is dying may be gone, the next time; the rest is certain
    const bool may_change = !members.empty() && (!error || error->code() == ErrorCode::timeout);
    const bool last = local_problem.empty() ? deadline.remaining() < kTimeToTell : attempt == kAttempts;
    if (!may_change || last) break;
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(kBetweenAttempts, deadline.remaining() / 4));
  }
  if (!error) {
    error = Error{{.code = ErrorCode::system,
                   .attempted = operation.description(),
                   .cause = "communication failed, and no other rank is known to be lost",
                   .native = local_problem,
                   .ranks = {},
                   .hint = "look for network errors on the hosts, and for limits on open files"}};
  }
  const Error settled = settle(*error);
  tell(settled, members, earlier(deadline, Deadline::after(kLeastTime)));
  return settled;
}

bool FailureDetector::neighbour_disagrees(const Operation& operation, Deadline deadline) const {
  const int size = static_cast<int>(members_.global_ranks.size());
  const int next = (members_.rank + 1) % size;
  const auto replies = world::ask_peers({members_.endpoints[static_cast<std::size_t>(next)]}, service_,
                                        encode(StatusQuestion{.sequence = operation.sequence}), deadline);
  if (replies[0].kind != world::PeerReply::Kind::answered) return false;
  const StatusAnswer status = decode_status_answer(replies[0].body);
  return status.verdict.has_value() ||
         (status.fingerprint != 0 && operation.sequence != 0 && status.fingerprint != operation.fingerprint());
}

}  // namespace ddp
