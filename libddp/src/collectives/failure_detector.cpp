#include "collectives/failure_detector.hpp"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "base/message.hpp"

namespace ddp::collectives {
namespace {

// Time to tell ranks that have just answered; their processors may be busy.
constexpr std::chrono::milliseconds kTimeToNotify{1000};
// Time to agree with them: a rank's silence may last this long.
constexpr std::chrono::milliseconds kTimeToAgree{1000};
// Interval of checks whether another rank has sent the verdict.
constexpr std::chrono::milliseconds kVerdictLook{20};
// A witness that hung up may be about to die.
constexpr std::chrono::milliseconds kAskAgain{5};

/// Members over their peer channels, and the steady clock.
class ChannelLink final : public MemberLink {
 public:
  ChannelLink(const GroupMembers& members, const std::string& service, const StatusQuestion& question)
      : members_(members), inquiry_(members.endpoints, service, base::encode(GroupMessage{question})) {}

  Time now() const override { return Deadline::Clock::now(); }
  void ask(int member) override { inquiry_.ask(static_cast<std::size_t>(member)); }
  bool asking(int member) const override { return inquiry_.asking(static_cast<std::size_t>(member)); }
  bool runs(int member) const override {
    return base::life_of(members_.endpoints[static_cast<std::size_t>(member)].process) == base::ProcessLife::runs;
  }
  std::vector<MemberReply> wait(Time until) override {
    std::vector<MemberReply> replies;
    for (auto& [member, reply] : inquiry_.wait(Deadline{until})) {
      replies.push_back({.rank = static_cast<int>(member), .kind = reply.kind});
      if (reply.kind != world::PeerReply::Kind::answered) continue;
      try {
        replies.back().status = base::decode<StatusAnswer>(reply.body);
      } catch (const Error& error) {
        base::log(base::LogLevel::debug, "asking rank {}: {}", members_.global(replies.back().rank), error.what());
      }
    }
    return replies;
  }

 private:
  const GroupMembers& members_;
  world::PeerInquiry inquiry_;
};

/// Ranks that cannot be witnesses: dead, silent, or outside the group.
std::vector<int> absent_of(const std::vector<MemberReply>& findings) {
  using Kind = world::PeerReply::Kind;
  std::vector<int> absent;
  for (const MemberReply& member : findings) {
    const bool may_answer = member.kind == Kind::answered || member.kind == Kind::not_asked;
    if (!may_answer || member.silence >= LifeSigns::kPatience) absent.push_back(member.rank);
  }
  return absent;
}

}  // namespace

FailureDetector::FailureDetector(const GroupMembers& members, const OperationLog& log, std::function<void()> on_verdict)
    : members_(members),
      log_(log),
      on_verdict_(std::move(on_verdict)),
      service_("group/" + members.name),
      signs_(members.size(), members.peer_timeout) {
  if (members_.channel) {
    members_.channel->serve(service_, [this](std::span<const std::byte> body) { return answer(body); });
  }
}

FailureDetector::~FailureDetector() { close(); }

void FailureDetector::close() noexcept {
  if (members_.channel) members_.channel->unserve(service_);
}

std::optional<Error> FailureDetector::verdict() const {
  const std::lock_guard lock(mutex_);
  return record_.verdict();
}

Error FailureDetector::adopt(const Error& verdict) {
  const std::lock_guard lock(mutex_);
  return record_.decide(verdict);
}

Bytes FailureDetector::answer(std::span<const std::byte> body) {
  const auto message = base::decode<GroupMessage>(body);
  if (const auto* told = std::get_if<Verdict>(&message)) {
    adopt(told->error);
    on_verdict_();
    return {};
  }
  if (const auto* proposal = std::get_if<Proposal>(&message)) {
    const std::lock_guard lock(mutex_);
    return base::encode(record_.propose(proposal->error));
  }
  const auto& [sequence, neighbours] = std::get<StatusQuestion>(message);
  StatusAnswer status{.last_issued = log_.last_issued(),
                      .fingerprint = 0,
                      .waits = log_.waits(),
                      .transfer = log_.long_transfer(),
                      .verdict = verdict()};
  for (int member = 0; neighbours && member < members_.size(); ++member) {
    const base::ProcessNumber& process = members_.endpoints[static_cast<std::size_t>(member)].process;
    if (member == members_.rank || !members_.same_node(member, members_.rank)) continue;
    if (base::life_of(process) == base::ProcessLife::runs) status.running.push_back(member);
  }
  if (const auto entry = log_.find(sequence)) {
    status.fingerprint = entry->fingerprint;
    status.description = entry->operation.description();
  }
  return base::encode(status);
}

std::optional<ProposalAnswer> FailureDetector::propose(int witness, const Error& error, Deadline limit) {
  if (witness == members_.rank) {
    const std::lock_guard lock(mutex_);
    return record_.propose(error);
  }
  const auto place = static_cast<std::size_t>(witness);
  world::PeerInquiry inquiry({members_.endpoints[place]}, service_,
                             base::encode(GroupMessage{Proposal{.error = error}}));
  inquiry.ask(0);
  for (;;) {
    const auto replies = inquiry.wait(earlier(limit, Deadline::after(kVerdictLook)));
    if (verdict() || limit.expired()) return std::nullopt;
    if (replies.empty()) continue;
    using Kind = world::PeerReply::Kind;
    const world::PeerReply& reply = replies.front().second;
    if (reply.kind == Kind::answered) {
      try {
        return base::decode<ProposalAnswer>(reply.body);
      } catch (const Error& problem) {
        base::log(base::LogLevel::debug, "proposing a verdict to rank {}: {}", members_.global(witness),
                  problem.what());
        return std::nullopt;
      }
    }
    if (reply.kind != Kind::hung_up && reply.kind != Kind::busy && reply.kind != Kind::not_asked) return std::nullopt;
    std::this_thread::sleep_for(kAskAgain);
    inquiry.ask(0);
  }
}

Error FailureDetector::agreed(const Error& error, const std::vector<MemberReply>& findings, Deadline limit) {
  Agreement agreement(members_, error, absent_of(findings));
  for (;;) {
    if (const auto known = verdict()) return *known;
    const auto witness = agreement.next();
    if (!witness) return agreement.verdict();
    const auto answer = propose(*witness, agreement.verdict(), earlier(limit, Deadline::after(LifeSigns::kPatience)));
    if (answer) {
      agreement.pass(*answer);
    } else {
      agreement.skip();
    }
  }
}

Error FailureDetector::agree(const Error& error) { return adopt(agreed(error, {}, Deadline::after(kTimeToAgree))); }

void FailureDetector::notify(const Error& verdict, const std::vector<MemberReply>& members, Deadline deadline) const {
  using Kind = world::PeerReply::Kind;
  std::vector<world::PeerEndpoint> listening;
  for (const MemberReply& member : members) {
    if (member.kind == Kind::refused || member.kind == Kind::no_answer) continue;
    if (member.status && member.status->verdict) continue;
    listening.push_back(members_.endpoints[static_cast<std::size_t>(member.rank)]);
  }
  world::ask_peers(listening, service_, base::encode(GroupMessage{Verdict{.error = verdict}}), deadline);
}

void FailureDetector::notify_all(const Error& error) {
  const Deadline limit = Deadline::after(kTimeToNotify);
  const Error verdict = agreed(error, {}, Deadline::after(kTimeToNotify / 2));
  std::vector<world::PeerEndpoint> others = members_.endpoints;
  others.erase(others.begin() + members_.rank);
  world::ask_peers(others, service_, base::encode(GroupMessage{Verdict{.error = verdict}}), limit);
}

/// A turn to inquire, if its owner got one in time.
class FailureDetector::InquiryTurn {
 public:
  InquiryTurn(FailureDetector& detector, Deadline deadline) : detector_(detector) {
    std::unique_lock lock(detector_.mutex_);
    taken_ = detector_.turn_ends_.wait_until(lock, deadline.when(), [&] { return !detector_.inquiring_; });
    if (taken_) detector_.inquiring_ = true;
  }
  InquiryTurn& operator=(InquiryTurn&&) = delete;
  ~InquiryTurn() {
    if (!taken_) return;
    const std::lock_guard lock(detector_.mutex_);
    detector_.inquiring_ = false;
    detector_.turn_ends_.notify_all();
  }
  bool taken() const { return taken_; }

 private:
  FailureDetector& detector_;
  bool taken_;
};

std::optional<Error> FailureDetector::inquire(const Operation& operation, Occasion occasion, LifeSigns& signs,
                                              const std::function<bool()>& go_on) {
  const std::optional<Error> local_failure = occasion.local_failure;
  const bool waiting = occasion.kind == Occasion::Kind::waiting;
  const Deadline end{occasion.end};
  ChannelLink link(members_, service_,
                   {.sequence = operation.sequence, .neighbours = occasion.kind == Occasion::Kind::deadline});
  Inquest inquest(members_, operation, std::move(occasion), signs, link);
  bool stopped = false;
  auto error = inquest.run([&] {
    stopped = verdict() || !go_on();
    return !stopped;
  });
  if (const auto known = verdict()) return known;
  if (stopped) return std::nullopt;
  if (!error) error = local_failure;
  if (!error) return std::nullopt;
  const auto within = [&](std::chrono::milliseconds most) {
    const Deadline patience = Deadline::after(most);
    const Deadline least = Deadline::after(kLeastTime);
    return waiting ? patience : end < least ? least : earlier(end, patience);
  };
  const auto& findings = inquest.findings();
  const bool decided = std::any_of(findings.begin(), findings.end(),
                                   [](const MemberReply& member) { return member.status && member.status->verdict; });
  const Error adopted = adopt(decided ? *error : agreed(*error, findings, within(kTimeToAgree)));
  notify(adopted, findings, within(kTimeToNotify));
  return adopted;
}

std::optional<Error> FailureDetector::investigate(const Operation& operation, const std::optional<Error>& local_failure,
                                                  const std::function<bool()>& still_running, Deadline deadline) {
  const Deadline least = Deadline::after(kLeastTime);
  if (deadline < least) deadline = least;
  ++urgent_;
  const InquiryTurn turn(*this, Deadline::after(deadline.remaining() / 2));
  --urgent_;
  if (const auto known = verdict()) return known;
  // an inquiry that waits longer for a silent member must not delay this one
  LifeSigns own(members_.size(), members_.peer_timeout);
  return inquire(operation,
                 {.kind = local_failure ? Occasion::Kind::failure : Occasion::Kind::deadline,
                  .local_failure = local_failure,
                  .end = deadline.when()},
                 turn.taken() ? signs_ : own, still_running);
}

void FailureDetector::watch(const Operation& operation, const std::function<bool()>& go_on) {
  const InquiryTurn turn(*this, Deadline::after(std::chrono::seconds(0)));
  if (!turn.taken() || verdict()) return;
  if (operation.sequence != 0 && operation.sequence != watched_) {
    watched_ = operation.sequence;
    signs_.forget();
  }
  inquire(operation, {.kind = Occasion::Kind::waiting}, signs_, [&] { return urgent_ == 0 && go_on(); });
}

namespace {

/// The first rank of each node, then the second of each, so that a lost node takes as few witnesses with it as
/// possible.
std::vector<int> witness_order(const GroupMembers& members) {
  std::map<int, int> on_node;
  std::vector<std::pair<int, int>> places;  // among the ranks of its node; rank
  for (int rank = 0; rank < members.size(); ++rank) {
    const int node = members.nodes.empty() ? 0 : members.nodes[static_cast<std::size_t>(rank)];
    places.emplace_back(on_node[node]++, rank);
  }
  std::sort(places.begin(), places.end());
  std::vector<int> order;
  order.reserve(places.size());
  for (const auto& [place, rank] : places) order.push_back(rank);
  return order;
}

}  // namespace

ProposalAnswer VerdictRecord::propose(const Error& error) {
  if (verdict_) return {.decided = true, .error = *verdict_};
  if (!proposed_) proposed_ = error;
  return {.decided = false, .error = *proposed_};
}

const Error& VerdictRecord::decide(const Error& error) {
  if (!verdict_) verdict_ = error;
  return *verdict_;
}

Agreement::Agreement(const GroupMembers& members, Error proposal, const std::vector<int>& absent)
    : verdict_(std::move(proposal)), order_(witness_order(members)) {
  std::erase_if(order_, [&](int rank) { return std::find(absent.begin(), absent.end(), rank) != absent.end(); });
}

std::optional<int> Agreement::next() const {
  if (passed_ >= kWitnesses || place_ >= order_.size()) return std::nullopt;
  return order_[place_];
}

void Agreement::pass(const ProposalAnswer& answer) {
  verdict_ = answer.error;
  ++place_;
  passed_ = answer.decided ? kWitnesses : passed_ + 1;
}

}  // namespace ddp::collectives
