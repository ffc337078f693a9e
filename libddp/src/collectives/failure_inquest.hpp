// Asks members of a group until it is clear whether one of them is lost, or called something else. Time and questions
// come from outside, so that tests can make both up.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include <ddp/deadline.hpp>

#include "collectives/failure_verdict.hpp"
#include "world/peer_questions.hpp"

namespace ddp::collectives {

// ---- What is known of the life of a group's members, from the questions that they have answered or not. No I/O, no
// clock.

/// By rank in the group. Counts only time in which a question was open and this process ran: one that was stopped
/// itself has not heard silence.
class LifeSigns {
 public:
  using Time = Deadline::Clock::time_point;
  using Duration = Deadline::Clock::duration;

  /// One that is slower than this has left a question unanswered.
  static constexpr std::chrono::milliseconds kPatience{500};

  LifeSigns(int members, std::chrono::milliseconds peer_timeout);

  /// A question to @p member has been open, or could not be put, for @p time more.
  void waited(int member, Duration time) { of(member).silence += time; }
  void heard(int member, world::PeerReply::Kind kind, Time now);
  /// All were alive: something that needs all of them has happened.
  void forget();

  /// For how long it has been asked in vain.
  Duration silence(int member) const { return of(member).silence; }
  /// How often in a row nobody listened where it should.
  int refusals(int member) const { return of(member).refusals; }
  bool heard_since(int member, Time time) const { return of(member).heard >= time; }

  /// Two questions in a row were refused or not answered: reason enough to ask all.
  bool doubtful(int member) const;
  /// Nobody has listened three times in a row, some time apart.
  bool gone(int member) const;
  /// Silent for so long that no healthy process is; or so many times as long.
  bool lost(int member, int times = 1) const { return silence(member) >= longest_silence(member) * times; }
  /// Silent for almost as long: lost together with another, but asked later.
  bool nearly_lost(int member) const { return silence(member) >= longest_silence(member) * 3 / 5; }

 private:
  struct Signs {
    Duration silence{};
    int refusals = 0;
    int hang_ups = 0;
    Time heard{};
  };
  Duration longest_silence(int member) const;
  Signs& of(int member) { return signs_[static_cast<std::size_t>(member)]; }
  const Signs& of(int member) const { return signs_[static_cast<std::size_t>(member)]; }

  std::vector<Signs> signs_;
  Duration longest_silence_;
};

/// How often a rank that waits looks whether those that it waits for are alive, at least: so that a silence that begins
/// right after an answer is noticed, and has lasted long enough, within @p peer_timeout.
std::chrono::milliseconds longest_probe_interval(std::chrono::milliseconds peer_timeout);

/// The way to ask members about one operation, and the clock.
class MemberLink {
 public:
  using Time = LifeSigns::Time;

  virtual ~MemberLink() = default;
  virtual Time now() const = 0;
  /// Asks over a new connection; a question to this member that is still open is given up. May come later, when there
  /// are too many questions.
  virtual void ask(int member) = 0;
  /// Whether a question to it is on its way.
  virtual bool asking(int member) const = 0;
  /// Whether the kernel has the process of a member on this node as one that runs. False: unknown, too.
  virtual bool runs(int member) const = 0;
  /// Waits until there are replies, or @p until.
  virtual std::vector<MemberReply> wait(Time until) = 0;
};

/// Why members are asked.
struct Occasion {
  enum class Kind {
    waiting,   ///< an operation takes a while: whether those that it waits for are alive and called the same
    failure,   ///< it failed in the backend
    deadline,  ///< its deadline is near
  };
  Kind kind = Kind::waiting;
  std::optional<Error> local_failure{};  ///< of judge()
  LifeSigns::Time end{};                 ///< of failure and deadline: when there must be a verdict
};

class Inquest {
 public:
  /// @param members, @param operation, @param signs and @param link must outlive this object.
  Inquest(const GroupMembers& members, const Operation& operation, Occasion occasion, LifeSigns& signs,
          MemberLink& link);

  /// What is wrong. Nothing if @p go_on said false, if nothing is wrong (waiting), or if the replies do not explain the
  /// failure. Nobody is called lost for a silence that healthy processes have, unless the end has come.
  std::optional<Error> run(const std::function<bool()>& go_on);

  /// What is known of the members that were asked.
  const std::vector<MemberReply>& findings() const { return findings_; }

 private:
  using Time = LifeSigns::Time;
  using Duration = LifeSigns::Duration;
  struct Asked {
    bool wanted = false;   ///< it is to be asked
    bool pending = false;  ///< it has been asked, and has not replied
    bool heard = false;    ///< it has replied
    bool outside = false;  ///< it has replied that it is not in the group
    world::PeerReply::Kind last = world::PeerReply::Kind::not_asked;
    std::optional<StatusAnswer> status;
    int answers = 0;  ///< that showed it alive, or that it could not be asked
    int failures = 0;
    Time next{};           ///< when to ask it again
    Duration ask_again{};  ///< the silence after which the open question is given up for a new one
    Duration window{};     ///< between the last two
  };

  Asked& of(int member) { return asked_[static_cast<std::size_t>(member)]; }
  const Asked& of(int member) const { return asked_[static_cast<std::size_t>(member)]; }
  bool waiting() const { return occasion_.kind == Occasion::Kind::waiting; }
  bool deadline() const { return occasion_.kind == Occasion::Kind::deadline; }
  void want(int member);
  void want_all();
  void count_silence(Duration passed);
  void ask(Time now);
  Time next_look(Time now) const;
  void note(MemberReply reply, Time now);
  void want_next(int member);
  bool lost(int member) const;
  bool host_lost(int member) const;
  bool runs(int member) const;
  MemberReply finding(int member, bool over) const;
  bool concluded(Time now);
  bool may_be_leaving(Time now) const;
  bool heard_of_all() const;
  bool all_alive(int answers) const;

  const GroupMembers& members_;
  const Operation& operation_;
  const Occasion occasion_;
  LifeSigns& signs_;
  MemberLink& link_;
  const Time begin_;
  std::vector<Asked> asked_;
  std::vector<MemberReply> findings_;
  bool some_lost_ = false;
  std::optional<Error> error_;
};

}  // namespace ddp::collectives
