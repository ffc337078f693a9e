#include "collectives/life_signs.hpp"

#include <algorithm>

namespace ddp::collectives {
namespace {

// The second question waits twice as long as the first.
constexpr auto kTwoQuestions = 3 * LifeSigns::kPatience;
constexpr int kTwoRefusals = 2;
constexpr int kProof = 3;
// Hang-ups in a row, as of another program that has got the port. Fewer of them between lost packets are no more than a
// bad network, which needs twice the time to be told from death.
constexpr int kStrangersHangUps = 11;
constexpr int kTimesForABadNetwork = 2;
constexpr std::chrono::milliseconds kLongestInterval{60'000};

}  // namespace

// A sixth of DDP_PEER_TIMEOUT passes until the silence is noticed; the rest is for telling the others.
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
