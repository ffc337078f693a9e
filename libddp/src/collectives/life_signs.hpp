// What is known of the life of a group's members, from the questions that they have answered or not. No I/O, no clock.
#pragma once

#include <chrono>
#include <vector>

#include <ddp/deadline.hpp>

#include "world/peer_questions.hpp"

namespace ddp::collectives {

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

}  // namespace ddp::collectives
