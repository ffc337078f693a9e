#include "collectives/failure_inquest.hpp"

#include <algorithm>

namespace ddp::collectives {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = world::PeerReply::Kind;

// How often to look whether the inquest has become pointless.
constexpr milliseconds kStep{100};
// At most this much of the time between two checks counts as silence: for the rest, this process was stopped.
constexpr milliseconds kLongestStep{500};
// Reserved for telling the other ranks, which takes milliseconds.
constexpr milliseconds kTimeToAnswer{250};
// If a connection breaks while all ranks look alive, its peer may be about to die or may have just learned of a failure
// elsewhere: ask this often before blaming the network.
constexpr int kAttempts = 5;
constexpr milliseconds kBetweenAttempts{100};
// By then a dying rank is dead: one answer from each rank is enough, however long it took.
constexpr seconds kSettled{2};
constexpr milliseconds kLongestPause{1000};
constexpr milliseconds kLongestPauseAtTheEnd{250};
// Two refusals this far apart are more than a hiccup.
constexpr milliseconds kAfterRefusal{250};
constexpr milliseconds kAfterHangUp{50};
constexpr seconds kAfterUnreachable{1};
// A rank that a transfer waits for need not be asked again if it has answered this recently.
constexpr seconds kFresh{1};

constexpr int kTimesForOneThatMayHaveLeft = 4;

/// Whether a reply says no more than silence until the next one.
bool in_vain(Kind kind) { return kind == Kind::refused || kind == Kind::hung_up || kind == Kind::unreachable; }

}  // namespace

Inquest::Inquest(const GroupMembers& members, const Operation& operation, Occasion occasion, LifeSigns& signs,
                 MemberLink& link)
    : members_(members),
      operation_(operation),
      occasion_(std::move(occasion)),
      signs_(signs),
      link_(link),
      begin_(link.now()),
      asked_(static_cast<std::size_t>(members.size())) {
  if (!waiting()) {
    want_all();
  } else if (!operation.is_transfer()) {
    want((members.rank + 1) % members.size());
  } else if (!signs.heard_since(operation.root, link.now() - kFresh)) {
    want(operation.root);
  }
}

void Inquest::want(int member) {
  if (member == members_.rank) return;
  of(member).wanted = true;
}

void Inquest::want_all() {
  for (int member = 0; member < members_.size(); ++member) want(member);
}

std::optional<Error> Inquest::run(const std::function<bool()>& go_on) {
  const bool nobody = std::none_of(asked_.begin(), asked_.end(), [](const Asked& asked) { return asked.wanted; });
  Time last = link_.now();
  while (!(nobody && concluded(last))) {
    const Time now = link_.now();
    count_silence(std::min<Duration>(now - last, kLongestStep));
    last = now;
    ask(now);
    auto replies = link_.wait(next_look(now));
    while (!replies.empty()) {
      for (MemberReply& reply : replies) note(std::move(reply), link_.now());
      replies = link_.wait(link_.now());
    }
    if (!go_on()) return std::nullopt;
    if (concluded(link_.now())) break;
  }
  return error_;
}

void Inquest::count_silence(Duration passed) {
  for (int member = 0; member < members_.size(); ++member) {
    const Asked& asked = of(member);
    if (!asked.wanted) continue;
    const bool between = !asked.pending && in_vain(asked.last);
    if (between || link_.asking(member)) signs_.waited(member, passed);
  }
}

void Inquest::ask(Time now) {
  for (int member = 0; member < members_.size(); ++member) {
    Asked& asked = of(member);
    if (!asked.wanted) continue;
    const Duration silence = signs_.silence(member);
    if (!asked.pending) {
      if (now < asked.next) continue;
      asked.window = LifeSigns::kPatience;
    } else if (link_.asking(member) && silence >= asked.ask_again) {
      asked.window *= 2;  // it may be slow
    } else {
      continue;
    }
    asked.pending = true;
    asked.ask_again = silence + asked.window;
    link_.ask(member);
  }
}

Inquest::Time Inquest::next_look(Time now) const {
  Time next = now + kStep;
  for (const Asked& asked : asked_) {
    if (asked.wanted && !asked.pending) next = std::min(next, asked.next);
  }
  return waiting() ? next : std::min(next, occasion_.end - kTimeToAnswer);
}

void Inquest::note(MemberReply reply, Time now) {
  Asked& asked = of(reply.rank);
  asked.pending = false;
  asked.heard = true;
  asked.last = reply.kind == Kind::answered && !reply.status ? Kind::failed : reply.kind;
  asked.outside = asked.outside || asked.last == Kind::failed;
  signs_.heard(reply.rank, reply.kind, now);
  switch (reply.kind) {
    case Kind::answered:
    case Kind::busy:
    case Kind::failed:
    case Kind::not_asked: {
      const bool goes_on = reply.status && reply.status->waits;
      if (reply.status) asked.status = std::move(reply.status);
      ++asked.answers;
      asked.failures = 0;
      const milliseconds longest = deadline() ? kLongestPauseAtTheEnd : kLongestPause;
      const int doublings = std::clamp(asked.answers - kAttempts, 0, 10);
      asked.next = now + (waiting() ? longest_probe_interval(members_.peer_timeout)
                                    : std::min(kBetweenAttempts * (1 << doublings), longest));
      if (waiting() && !goes_on) want_next(reply.rank);
      break;
    }
    case Kind::refused: asked.next = now + kAfterRefusal * (1 << std::min(asked.failures++, 3)); break;
    case Kind::hung_up: asked.next = now + kAfterHangUp * (1 << std::min(asked.failures++, 3)); break;
    case Kind::unreachable:
    case Kind::no_answer: asked.next = now + kAfterUnreachable; break;
  }
}

/// A waiting rank watches the next one. If that rank does not wait, its own watcher takes over.
void Inquest::want_next(int member) {
  if (!operation_.is_transfer()) want((member + 1) % members_.size());
}

bool Inquest::lost(int member) const {
  // A rank that left in good order also refuses while others still run the last operation. With a root that can take
  // long, as ranks may leave before others have even called it.
  const bool rooted = !operation_.is_transfer() && operation_.root >= 0;
  const bool may_have_left = waiting() && rooted && signs_.refusals(member) > 0;
  return signs_.lost(member, may_have_left ? kTimesForOneThatMayHaveLeft : 1);
}

/// Whether another rank of the member's node has been silent for too long: then so has this one, though it was asked
/// later.
bool Inquest::host_lost(int member) const {
  if (members_.nodes.empty()) return false;
  for (int other = 0; other < members_.size(); ++other) {
    if (members_.same_node(other, member) && of(other).wanted && signs_.refusals(other) == 0 && lost(other))
      return true;
  }
  return false;
}

/// Whether the kernel of its node says so, which this rank or another there has just asked.
bool Inquest::runs(int member) const {
  if (members_.same_node(member, members_.rank)) return link_.runs(member);
  for (int other = 0; other < members_.size(); ++other) {
    const Asked& asked = of(other);
    if (!members_.same_node(other, member) || !asked.status || signs_.silence(other) >= LifeSigns::kPatience) continue;
    const auto& running = asked.status->running;
    if (std::find(running.begin(), running.end(), member) != running.end()) return true;
  }
  return false;
}

MemberReply Inquest::finding(int member, bool over) const {
  const Asked& asked = of(member);
  const Duration silence = signs_.silence(member);
  MemberReply reply{
      .rank = member, .kind = Kind::not_asked, .silence = std::chrono::duration_cast<milliseconds>(silence)};
  const int refusals = signs_.refusals(member);
  // after a broken connection, or at the end, the member is missing
  const bool missing = occasion_.kind == Occasion::Kind::failure || over || (!waiting() && signs_.gone(member));
  if (refusals > 0 && (missing || lost(member))) {
    reply.kind = Kind::refused;
    reply.left = asked.outside;
  } else if (asked.status && refusals == 0 && silence < LifeSigns::kPatience) {
    reply.kind = Kind::answered;
    reply.status = asked.status;
  } else if (lost(member) || (some_lost_ && refusals == 0 && signs_.nearly_lost(member)) ||
             (some_lost_ && refusals == 0 && signs_.doubtful(member) && host_lost(member)) ||
             (over && silence > Duration::zero() && (deadline() || asked.answers == 0))) {
    reply.kind = Kind::no_answer;
    reply.runs = over && deadline() && runs(member);
  } else if (!waiting() && asked.last == Kind::failed) {
    reply.kind = Kind::failed;
  }
  return reply;
}

bool Inquest::concluded(Time now) {
  const bool over = !waiting() && now >= occasion_.end - kTimeToAnswer;
  bool doubt = false;
  some_lost_ = false;
  for (int member = 0; member < members_.size(); ++member) {
    some_lost_ = some_lost_ || (of(member).wanted && lost(member));
  }
  findings_.clear();
  for (int member = 0; member < members_.size(); ++member) {
    if (!of(member).wanted) continue;
    findings_.push_back(finding(member, over));
    doubt = doubt || signs_.doubtful(member);
    const auto& status = findings_.back().status;
    if (status && status->verdict) {
      error_ = status->verdict;
      return true;
    }
  }
  error_ = judge(members_, operation_, occasion_.local_failure, findings_);
  const bool certain = error_ && error_->code() != ErrorCode::timeout;
  if (waiting() && (certain || doubt)) want_all();
  const bool leaving = may_be_leaving(now);
  if (certain && heard_of_all() && (over || !leaving)) return true;
  if (waiting()) {
    if (!all_alive(1)) return false;
    error_.reset();
    return true;
  }
  if (over || findings_.empty()) return true;
  return !deadline() && !leaving && all_alive(now >= begin_ + kSettled ? 1 : kAttempts);
}

/// If a verdict would rest only on a rank outside the group, that rank is usually about to end: wait, so that the
/// verdict says that rather than that it is alive.
bool Inquest::may_be_leaving(Time now) const {
  const auto is = [](Kind kind) { return [kind](const MemberReply& reply) { return reply.kind == kind; }; };
  return !waiting() && now < begin_ + kSettled && std::any_of(findings_.begin(), findings_.end(), is(Kind::failed)) &&
         std::none_of(findings_.begin(), findings_.end(), is(Kind::refused)) &&
         std::none_of(findings_.begin(), findings_.end(), is(Kind::no_answer));
}

/// Whether every rank was heard, so that a verdict names all that it should.
bool Inquest::heard_of_all() const {
  for (int member = 0; member < members_.size(); ++member) {
    const Asked& asked = of(member);
    if (asked.wanted && !asked.heard && signs_.silence(member) < LifeSigns::kPatience) return false;
  }
  return true;
}

bool Inquest::all_alive(int answers) const {
  for (int member = 0; member < members_.size(); ++member) {
    const Asked& asked = of(member);
    if (!asked.wanted) continue;
    if (asked.answers < answers || signs_.refusals(member) > 0 || signs_.silence(member) >= LifeSigns::kPatience) {
      return false;
    }
  }
  return true;
}

namespace {

// The second question waits twice as long as the first.
constexpr auto kTwoQuestions = 3 * LifeSigns::kPatience;
constexpr int kTwoRefusals = 2;
constexpr int kProof = 3;
// Hang-ups in a row, as when another program has taken the port. Fewer between lost packets only mean a bad network,
// which takes twice the time to distinguish from death.
constexpr int kStrangersHangUps = 11;
constexpr int kTimesForABadNetwork = 2;
constexpr std::chrono::milliseconds kLongestInterval{60'000};

}  // namespace

// Noticing the silence takes a sixth of DDP_PEER_TIMEOUT; the rest is for telling the other ranks.
LifeSigns::LifeSigns(int members, std::chrono::milliseconds peer_timeout)
    : signs_(static_cast<std::size_t>(members)), longest_silence_(peer_timeout * 3 / 4) {}

void LifeSigns::heard(int member, world::PeerReply::Kind kind, Time now) {
  using Kind = world::PeerReply::Kind;
  Signs& signs = of(member);
  switch (kind) {
    case Kind::answered:
    case Kind::busy:
    case Kind::failed: signs = {.refusals = 0, .hang_ups = 0, .heard = now}; break;
    case Kind::refused: ++signs.refusals; break;
    case Kind::hung_up: ++signs.hang_ups; break;
    case Kind::unreachable:
    case Kind::no_answer:
    case Kind::not_asked: break;
  }
}

void LifeSigns::forget() { std::fill(signs_.begin(), signs_.end(), Signs{}); }

bool LifeSigns::doubtful(int member) const {
  return silence(member) >= kTwoQuestions || refusals(member) >= kTwoRefusals;
}

bool LifeSigns::gone(int member) const { return refusals(member) >= kProof; }

LifeSigns::Duration LifeSigns::longest_silence(int member) const {
  const Signs& signs = of(member);
  const bool bad_network = signs.refusals == 0 && signs.hang_ups > 0 && signs.hang_ups < kStrangersHangUps;
  return longest_silence_ * (bad_network ? kTimesForABadNetwork : 1);
}

std::chrono::milliseconds longest_probe_interval(std::chrono::milliseconds peer_timeout) {
  return std::min(peer_timeout / 6, kLongestInterval);
}

}  // namespace ddp::collectives
