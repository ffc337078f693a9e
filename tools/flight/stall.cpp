#include "flight/stall.hpp"

#include <algorithm>
#include <set>
#include <tuple>

namespace ddp::tools::flight {
namespace {

using Member = GroupCalls::Member;

/// Whether two calls are the same but for their sequence, as far as that is recorded.
bool same_call(const Call* a, const Call* b) {
  return a != nullptr && b != nullptr &&
         std::tie(a->kind, a->dtype, a->count, a->reduce_op, a->root) ==
             std::tie(b->kind, b->dtype, b->count, b->reduce_op, b->root);
}

Divergence difference(const Call& theirs, const Call& expected) {
  if (theirs.kind != expected.kind) return Divergence::other_operation;
  if (theirs.dtype != expected.dtype) return Divergence::other_dtype;
  if (theirs.count != expected.count) return Divergence::other_size;
  if (theirs.reduce_op != expected.reduce_op) return Divergence::other_reduction;
  if (theirs.root != expected.root) return Divergence::other_root;
  return Divergence::other_parts;
}

/// How many calls in a row are the same, one side's from @p sequence + @p ahead on and the other's from
/// @p sequence + @p other_ahead on.
int same_in_a_row(const Member& member, std::uint64_t ahead, const Member& other, std::uint64_t other_ahead,
                  std::uint64_t sequence) {
  constexpr int kEnough = 64;
  int same = 0;
  while (same < kEnough && same_call(member.at(sequence + ahead + static_cast<std::uint64_t>(same)),
                                     other.at(sequence + other_ahead + static_cast<std::uint64_t>(same)))) {
    ++same;
  }
  return same;
}

/// What the two sides called next tells a different call from one too many, too few, or in another place.
/// @param expected a member that did as most.
Divergence classify(const Member& culprit, const Member& expected, std::uint64_t sequence) {
  if (same_call(culprit.at(sequence), expected.at(sequence + 1)) &&
      same_call(culprit.at(sequence + 1), expected.at(sequence))) {
    return Divergence::other_order;
  }
  const int replaced = same_in_a_row(culprit, 1, expected, 1, sequence);
  const int missing = same_in_a_row(culprit, 0, expected, 1, sequence);
  const int extra = same_in_a_row(culprit, 1, expected, 0, sequence);
  if (missing > std::max(replaced, extra)) return Divergence::missing_call;
  if (extra > std::max(replaced, missing)) return Divergence::extra_call;
  return difference(*culprit.at(sequence), *expected.at(sequence));
}

/// Of the members that differ from most others at @p sequence; nothing if all are the same.
std::optional<Finding> find_mismatch(const GroupCalls& group, std::uint64_t sequence) {
  std::map<std::uint64_t, std::vector<const Member*>> classes;  // by fingerprint
  for (const Member& member : group.members) {
    if (const Call* call = member.at(sequence)) classes[call->fingerprint].push_back(&member);
  }
  if (classes.size() < 2) return std::nullopt;
  const auto fewer = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
  const auto most = std::max_element(classes.begin(), classes.end(), fewer);
  // Among as many on both sides, those with the lowest rank are held to be right.
  auto right = most;
  std::size_t largest = 0;
  for (auto each = classes.begin(); each != classes.end(); ++each) {
    if (each->second.size() != most->second.size()) continue;
    ++largest;
    if (each->second.front()->rank < right->second.front()->rank) right = each;
  }
  Finding finding{.kind = Divergence::other_operation,
                  .group = group.name,
                  .sure = largest == 1,
                  .expected = right->second.front()->at(sequence)->description()};
  const Member* first = nullptr;
  for (const auto& [fingerprint, members] : classes) {
    for (const Member* member : members) {
      const bool differs = fingerprint != right->first;
      (differs ? finding.culprits : finding.others).push_back(member->rank);
      if (differs && (first == nullptr || member->rank < first->rank)) first = member;
    }
  }
  finding.kind = classify(*first, *right->second.front(), sequence);
  finding.theirs = first->at(sequence)->description();
  std::sort(finding.culprits.begin(), finding.culprits.end());
  std::sort(finding.others.begin(), finding.others.end());
  return finding;
}

void note_caller(Stall& stall, const Member& member, const Call& call) {
  stall.callers.push_back(member.rank);
  if (call.unfinished()) stall.waiting.push_back(member.rank);
  if (stall.since_ns == 0 || call.queued_ns < stall.since_ns) stall.since_ns = call.queued_ns;
  if (stall.operation.empty()) stall.operation = call.description();
}

void sort_ranks(Stall& stall) {
  for (auto* ranks : {&stall.callers, &stall.waiting, &stall.absent, &stall.unknown}) {
    std::sort(ranks->begin(), ranks->end());
  }
}

std::optional<Stall> find_collective_stall(const GroupCalls& group) {
  bool unfinished = false;  // those behind the first unfinished one may be ahead of others, and wait for it
  for (const std::uint64_t sequence : group.sequences) {
    Stall stall;
    stall.group = group.name;
    stall.sequence = sequence;
    for (const Member& member : group.members) {
      if (const Call* call = member.at(sequence)) note_caller(stall, member, *call);
      if (member.lacks(sequence)) stall.absent.push_back(member.rank);
      if (!member.has_dump) stall.unknown.push_back(member.rank);
    }
    sort_ranks(stall);
    stall.mismatch = find_mismatch(group, sequence);
    if (stall.mismatch) return stall;
    if (stall.waiting.empty() || unfinished) continue;
    unfinished = true;
    if (!stall.absent.empty() || !stall.unknown.empty()) return stall;
  }
  return std::nullopt;
}

/// The unfinished transfer of @p peer that belongs to @p call of @p own; null if there is none.
const Call* counterpart(const Member& peer, int own, const Call& call) {
  const auto found = std::find_if(peer.transfers.begin(), peer.transfers.end(), [&](const Call* each) {
    return each->unfinished() && each->kind != call.kind && each->root == own && each->tag == call.tag;
  });
  return found == peer.transfers.end() ? nullptr : *found;
}

void find_transfer_stalls(const GroupCalls& group, std::vector<Stall>& stalls) {
  for (std::size_t own = 0; own < group.members.size(); ++own) {
    const Member& member = group.members[own];
    std::set<std::tuple<OperationKind, int, std::uint32_t>> seen;  // the first of a kind holds up the rest
    for (const Call* call : member.transfers) {
      if (!call->unfinished() || !seen.emplace(call->kind, call->root, call->tag).second) continue;
      const auto peer_rank = static_cast<std::size_t>(call->root);
      if (peer_rank >= group.members.size()) continue;
      const Member& peer = group.members[peer_rank];
      Stall stall;
      stall.group = group.name;
      note_caller(stall, member, *call);
      if (!peer.has_dump) {
        stall.unknown = {peer.rank};
      } else if (const Call* other = counterpart(peer, static_cast<int>(own), *call)) {
        if (other->fingerprint == call->fingerprint || own > peer_rank) continue;  // under way, or found from there
        stall.mismatch = Finding{.kind = other->dtype != call->dtype ? Divergence::other_dtype : Divergence::other_size,
                                 .group = group.name,
                                 .culprits = {peer.rank},
                                 .others = {member.rank},
                                 .sure = false,
                                 .theirs = other->description(),
                                 .expected = call->description()};
      } else {
        stall.absent = {peer.rank};
      }
      stalls.push_back(std::move(stall));
    }
  }
}

}  // namespace

std::vector<Stall> find_stalls(const GroupCalls& group) {
  std::vector<Stall> stalls;
  if (auto stall = find_collective_stall(group)) stalls.push_back(std::move(*stall));
  find_transfer_stalls(group, stalls);
  return stalls;
}

}  // namespace ddp::tools::flight
