#include "collectives/failure_detector.hpp"

#include <algorithm>
#include <thread>

#include "base/log.hpp"

namespace ddp::collectives {
namespace {

// A connection that breaks while all ranks look alive may belong to one that is about to die or has just learned of a
// failure elsewhere: ask this often before blaming the network.
constexpr int kAttempts = 5;
constexpr auto kBetweenAttempts = std::chrono::milliseconds(100);
// Kept for telling the others, which takes milliseconds.
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
  StatusAnswer status{.last_issued = log_.last_issued(), .fingerprint = 0, .description = {}, .verdict = verdict()};
  if (const auto entry = log_.find(sequence)) {
    status.fingerprint = entry->fingerprint;
    status.description = entry->operation.description();
  }
  return encode(status);
}

std::vector<MemberReply> FailureDetector::ask_all(std::uint64_t sequence, Deadline deadline) const {
  std::vector<world::PeerEndpoint> others;
  std::vector<MemberReply> members;
  for (int rank = 0; rank < members_.size(); ++rank) {
    if (rank == members_.rank) continue;
    others.push_back(members_.endpoints[static_cast<std::size_t>(rank)]);
    members.push_back({.rank = rank, .kind = {}, .status = {}});
  }
  const auto replies = world::ask_peers(others, service_, encode(StatusQuestion{.sequence = sequence}), deadline);
  for (std::size_t i = 0; i < members.size(); ++i) {
    members[i].kind = replies[i].kind;
    if (replies[i].kind != world::PeerReply::Kind::answered) continue;
    try {
      members[i].status = decode_status_answer(replies[i].body);
    } catch (const Error& error) {
      base::log(base::LogLevel::debug, "asking rank {}: {}", members_.global(members[i].rank), error.what());
    }
  }
  return members;
}

void FailureDetector::tell(const Error& error, const std::vector<MemberReply>& members, Deadline deadline) const {
  std::vector<world::PeerEndpoint> listening;
  for (const MemberReply& member : members) {
    if (member.status && !member.status->verdict) {
      listening.push_back(members_.endpoints[static_cast<std::size_t>(member.rank)]);
    }
  }
  world::ask_peers(listening, service_, encode(Verdict{.error = error}), deadline);
}

std::optional<Error> FailureDetector::investigate(const Operation& operation, const std::optional<Error>& local_failure,
                                                  const std::function<bool()>& still_running, Deadline deadline) {
  const std::lock_guard one_at_a_time(investigation_);
  const Deadline least = Deadline::after(kLeastTime);
  if (deadline < least) deadline = least;
  std::optional<Error> error;
  std::vector<MemberReply> members;
  for (int attempt = 1;; ++attempt) {
    if (const auto known = verdict()) return known;
    // half of the time for asking, so that there is time left to tell
    members = ask_all(operation.sequence, Deadline::after(deadline.remaining() / 2));
    if (const auto known = verdict()) return known;
    if (!still_running()) return std::nullopt;
    error = judge(members_, operation, local_failure, members);
    // a late rank may come, and a dying one may be gone, the next time; the rest is certain
    const bool may_change = !members.empty() && (!error || error->code() == ErrorCode::timeout);
    const bool last = local_failure ? attempt == kAttempts : deadline.remaining() < kTimeToTell;
    if (!may_change || last) break;
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(kBetweenAttempts, deadline.remaining() / 4));
  }
  const Error settled = settle(error ? *error : local_failure.value());
  tell(settled, members, earlier(deadline, Deadline::after(kLeastTime)));
  return settled;
}

bool FailureDetector::neighbour_disagrees(const Operation& operation, Deadline deadline) const {
  const int next = (members_.rank + 1) % members_.size();
  const auto replies = world::ask_peers({members_.endpoints[static_cast<std::size_t>(next)]}, service_,
                                        encode(StatusQuestion{.sequence = operation.sequence}), deadline);
  if (replies[0].kind != world::PeerReply::Kind::answered) return false;
  const StatusAnswer status = decode_status_answer(replies[0].body);
  return status.verdict.has_value() ||
         (status.fingerprint != 0 && operation.sequence != 0 && status.fingerprint != operation.fingerprint());
}

}  // namespace ddp::collectives
