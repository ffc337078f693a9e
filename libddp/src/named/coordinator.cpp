#include "named/coordinator.hpp"

#include <algorithm>
#include <functional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/closest_word.hpp"
#include "base/message.hpp"
#include "named/comparison.hpp"
#include "named/execution.hpp"

namespace ddp::named {
namespace {

// Repetitions that must come before an order is learned again: doubles each time that ranks leave one.
constexpr int kMostRepetitions = 64;
constexpr std::size_t kMostLearned = 10'000;  // operations of a cycle: names that never repeat must not fill the memory
constexpr std::size_t kMostEager = 4096;      // bytes of a rank
constexpr std::size_t kMostEagerOfAll = 65'536;  // of all ranks
// Of the names that a missing rank waits for, those that are compared with what it is missing from.
constexpr std::size_t kMostCompared = 1'000;
constexpr std::size_t kLongestCompared = 256;
constexpr std::size_t kMostNamed = 4;  // operations that a missing rank waits for, in a report

}  // namespace

std::size_t size_of(const Facts& facts) noexcept {
  std::size_t bytes = 0;
  for (const TensorFacts& tensor : facts.tensors) {
    std::size_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= static_cast<std::size_t>(size);
    bytes += elements * ddp::size_of(tensor.dtype);
  }
  return bytes;
}

Coordinator::Coordinator(std::vector<int> world, std::size_t fusion_bytes) : fusion_bytes_(fusion_bytes) {
  sets_[0].members = std::move(world);
}

bool Coordinator::is_complete(const Set& set, const Entry& entry) const {
  return std::all_of(set.members.begin(), set.members.end(),
                     [&](int rank) { return entry.facts.contains(rank) || joined_.contains(rank); });
}

std::vector<int> Coordinator::missing(const Set& set, const Entry& entry) const {
  std::vector<int> ranks;
  std::copy_if(set.members.begin(), set.members.end(), std::back_inserter(ranks),
               [&](int rank) { return !entry.facts.contains(rank) && !joined_.contains(rank); });
  return ranks;
}

void Coordinator::announce(int rank, Announcement announcement, Time now) {
  const auto found = sets_.find(announcement.set);
  if (found == sets_.end()) return;  // removed meanwhile
  Set& set = found->second;
  if (announcement.epoch < set.epoch) return;  // it has the operation still, and takes it in the learned order
  if (announcement.epoch > set.epoch) {        // the ranks have left it
    set.epoch = announcement.epoch;
    set.needed = std::min(2 * set.needed, kMostRepetitions);
    forget_cycle(set);
    set.repeated = 0;
  }
  for (Request& request : announcement.requests) {
    Entry& entry = set.entries[request.key];
    if (entry.facts.empty()) {
      entry.since = now;
      entry.serial = ++serial_;
    }
    entry.facts.insert_or_assign(rank, std::move(request.facts));
    if (is_complete(set, entry)) set.complete.push_back(request.key);
  }
}

void Coordinator::join(int rank) {
  joined_.insert(rank);
  last_joined_ = rank;
  for (auto& [number, set] : sets_) {
    if (std::find(set.members.begin(), set.members.end(), rank) == set.members.end()) continue;
    std::vector<std::pair<std::uint64_t, Key>> now;
    for (const auto& [key, entry] : set.entries) {
      if (!entry.facts.contains(rank) && is_complete(set, entry)) now.emplace_back(entry.serial, key);
    }
    std::sort(now.begin(), now.end());
    for (auto& [serial, key] : now) set.complete.push_back(std::move(key));
  }
}

std::optional<ErrorDetail> Coordinator::problem_of(const Set& set, const Key& key, const Entry& entry) const {
  if (auto problem = compare(key, entry.facts)) return problem;
  std::vector<int> absent;
  std::copy_if(set.members.begin(), set.members.end(), std::back_inserter(absent),
               [&](int rank) { return !entry.facts.contains(rank); });
  const Facts& facts = entry.facts.begin()->second;
  const auto refuse = [&](const char* what) {
    return ErrorDetail{.code = ErrorCode::mismatch,
                       .attempted = name_of(key),
                       .cause = fmt::format("{} has called join(), {}", format_ranks(absent), what),
                       .ranks = absent,
                       .hint = "call join() after the last operation of this kind on all ranks"};
  };
  if (!absent.empty()) {
    if (key.kind == Kind::broadcast && std::find(absent.begin(), absent.end(), facts.root) != absent.end())
      return refuse("and it is the root");
    if (key.kind == Kind::all_to_all || key.kind == Kind::reduce_scatter)
      return refuse("and the operation needs all ranks");
    if (key.kind == Kind::add_set || key.kind == Kind::remove_set)
      return refuse("and process sets change among all ranks");
  }
  if (key.kind == Kind::remove_set && !sets_.contains(facts.ranks.front()))
    return ErrorDetail{.code = ErrorCode::invalid_argument,
                       .attempted = name_of(key),
                       .cause = fmt::format("there is no process set {}", facts.ranks.front()),
                       .hint = "remove a set once"};
  return std::nullopt;
}

void Coordinator::forget_cycle(Set& set) {
  set.cycle.clear();
  set.cycle_facts.clear();
  set.first.clear();
  set.last_facts.clear();
  set.unnamed.clear();
}

Key Coordinator::place_of(Set& set, const Key& key) {
  Key place = key;
  if (key.number > 0) place.number = key.number - set.first.emplace(series_of(key), key.number).first->second + 1;
  return place;
}

/// Whether @p key begins a cycle like those before: then the order can be learned. A name that comes again begins one,
/// or, where none comes, what continues the repetition of those without.
bool Coordinator::repeats(Set& set, const Key& key, const Facts& facts) {
  const auto begin_cycle = [&set] {
    set.cycle.clear();
    set.first.clear();
    return std::exchange(set.cycle_facts, {});
  };
  if (set.cycle_facts.size() > kMostLearned) begin_cycle();
  const bool may_learn = joined_.empty() && set.members.size() > 1;
  if (key.number > 0) {
    const Key series = series_of(key);
    if (key.number != set.last[series] + 1) forget_cycle(set);  // threads have overtaken each other
    if (!may_learn) return false;
    const Bytes item = base::encode(Request{.key = series, .facts = compared_part(key.kind, facts)});
    const std::string_view text(reinterpret_cast<const char*>(item.data()), item.size());
    const std::size_t period = set.unnamed.add(std::hash<std::string_view>{}(text), set.needed);
    if (period == 0 || period > set.cycle_facts.size()) return false;
    if (period == set.cycle_facts.size()) return true;
    begin_cycle();
    return false;
  }
  set.unnamed.clear();
  if (!set.cycle_facts.contains(key)) return false;
  const bool same = set.cycle_facts == set.last_facts;
  set.repeated = same ? set.repeated + 1 : 0;
  if (may_learn && set.repeated >= set.needed) return true;
  set.last_facts = begin_cycle();
  return false;
}

Learned Coordinator::learned_order(int number, const Set& set) const {
  Learned learned{.set = number,
                  .epoch = set.epoch + 1,
                  .batches = set.cycle,
                  .eager = eager_bytes(set),
                  .fusion_bytes = fusion_bytes_};
  for (auto& batch : learned.batches) {
    for (Key& key : batch) {
      if (key.number > 0) key.number += set.last.at(series_of(key));
    }
  }
  return learned;
}

/// Small reductions are faster by an all_gather of what all give, which is exchanged anyway. So are all_gathers, whose
/// rows may come to more another time: then they do not go along.
std::vector<std::int64_t> Coordinator::eager_bytes(const Set& set) {
  std::vector<std::int64_t> all;
  for (const std::vector<Key>& batch : set.cycle) {
    std::size_t bytes = 0;
    bool fits = true;
    if (batch.front().kind == Kind::all_gather && set.cycle_facts.at(batch.front()).tensors.size() == 1) {
      const bool few = sizeof(EagerRows) * set.members.size() <= kMostEagerOfAll;
      all.push_back(few ? static_cast<std::int64_t>(sizeof(EagerRows)) : 0);
      continue;
    }
    for (const Key& key : batch) {
      fits = fits && key.kind == Kind::all_reduce;
      bytes += size_of(set.cycle_facts.at(key));
    }
    fits = fits && bytes <= kMostEager && bytes * set.members.size() <= kMostEagerOfAll;
    all.push_back(fits ? static_cast<std::int64_t>(bytes) : 0);
  }
  return all;
}

void Coordinator::note(Set& set, const Key& key, const Facts& facts, bool joins_last) {
  if (key.kind == Kind::add_set || key.kind == Kind::remove_set) return;
  if (!joins_last || set.cycle.empty()) set.cycle.emplace_back();
  const Key place = place_of(set, key);
  set.cycle.back().push_back(place);
  set.cycle_facts.insert_or_assign(place, compared_part(key.kind, facts));
  if (key.number > 0) set.last[series_of(key)] = key.number;
}

void Coordinator::carry_out(const Key& key, const Facts& facts) {
  if (key.kind == Kind::add_set) sets_[++added_].members = facts.ranks;
  if (key.kind == Kind::remove_set) sets_.erase(facts.ranks.front());
}

/// Whether it goes in one exchange with those of @p batch.
bool Coordinator::joins(const std::vector<Request>& batch, const Request& request) const {
  if (batch.empty() || !may_be_fused(batch.front(), request)) return false;
  std::size_t bytes = size_of(request.facts);
  for (const Request& each : batch) bytes += size_of(each.facts);
  return bytes <= fusion_bytes_;
}

void Coordinator::decide_in(int number, Set& set, std::vector<Letter>& letters) {
  Batches batches;
  std::vector<Failure> failures;
  std::vector<Request> changes;  // of sets, which are carried out behind this loop
  std::optional<Learned> learned;
  for (const Key& key : std::exchange(set.complete, {})) {
    const auto found = set.entries.find(key);
    if (found == set.entries.end()) continue;
    if (auto problem = problem_of(set, key, found->second)) {
      failures.push_back({.key = key, .error = std::move(*problem)});
      set.entries.erase(found);
      forget_cycle(set);
      continue;
    }
    if (repeats(set, key, found->second.facts.begin()->second)) {
      learned = learned_order(number, set);
      break;
    }
    Request request{.key = key, .facts = found->second.facts.begin()->second};
    set.entries.erase(found);
    const bool joins_last = !batches.empty() && joins(batches.back(), request);
    note(set, key, request.facts, joins_last);
    if (key.kind == Kind::add_set || key.kind == Kind::remove_set) changes.push_back(request);
    if (!joins_last) batches.emplace_back();
    batches.back().push_back(std::move(request));
  }
  if (!batches.empty() || !failures.empty()) send_decision(number, set, batches, failures, letters);
  if (learned) {
    ++set.epoch;
    set.entries.clear();
    set.complete.clear();
    for (const int rank : set.members) letters.emplace_back(rank, FromCoordinator{*learned});
  }
  for (const Request& change : changes) carry_out(change.key, change.facts);  // may end `set`
}

void Coordinator::send_decision(int number, const Set& set, const Batches& batches,
                                const std::vector<Failure>& failures, std::vector<Letter>& letters) const {
  Decision brief{.set = number, .batches = batches, .failures = failures};
  for (auto& batch : brief.batches) {
    for (Request& request : batch) {
      if (request.key.kind != Kind::add_set && request.key.kind != Kind::remove_set) request.facts = {};
    }
  }
  for (const int rank : set.members) {
    if (joined_.contains(rank)) {
      letters.emplace_back(rank, FromCoordinator{Decision{.set = number, .batches = batches, .failures = failures}});
    } else {
      letters.emplace_back(rank, FromCoordinator{brief});
    }
  }
}

std::vector<Coordinator::Letter> Coordinator::decide() {
  std::vector<Letter> letters;
  std::vector<int> numbers;
  for (const auto& [number, set] : sets_) numbers.push_back(number);
  for (const int number : numbers) {
    const auto set = sets_.find(number);
    if (set != sets_.end() && !set->second.complete.empty()) decide_in(number, set->second, letters);
  }
  const std::vector<int>& world = sets_.at(0).members;
  if (!joined_.empty() && joined_.size() == world.size()) {
    joined_.clear();
    for (const int rank : world) letters.emplace_back(rank, FromCoordinator{AllJoined{.last = last_joined_}});
  }
  return letters;
}

std::optional<Coordinator::Time> Coordinator::oldest() const {
  std::optional<Time> oldest;
  for (const auto& [number, set] : sets_) {
    for (const auto& [key, entry] : set.entries) {
      if (!oldest || entry.since < *oldest) oldest = entry.since;
    }
  }
  return oldest;
}

std::string Coordinator::similar(int rank, const Key& key) const {
  std::vector<std::string> names;
  for (const auto& [number, set] : sets_) {
    for (const auto& [its_key, its] : set.entries) {
      const bool comparable = its_key.kind == key.kind && its_key.name.size() <= kLongestCompared;
      if (comparable && its.facts.contains(rank) && names.size() < kMostCompared) names.push_back(full_name(its_key));
    }
  }
  if (key.name.size() > kLongestCompared) return {};
  return base::closest_word(full_name(key), names, base::plausible_changes(key.name.size(), base::kTypingMistake));
}

std::vector<std::string> Coordinator::stalled(Time limit) const {
  std::vector<std::string> lines;
  for (const auto& [number, set] : sets_) {
    for (const auto& [key, entry] : set.entries) {
      if (entry.since > limit) continue;
      const std::vector<int> absent = missing(set, entry);
      std::string line = fmt::format("{} waits for {}", name_of(key), format_ranks(absent));
      if (number != 0) line += fmt::format(" in process set {}", number);
      for (const int rank : absent) {
        if (std::string name = similar(rank, key); !name.empty()) {
          const Key other{.kind = key.kind, .name = std::move(name)};
          line += fmt::format("; rank {} waits in {}, whose name is similar", rank, name_of(other));
          continue;
        }
        std::vector<std::string> own;
        for (const auto& [other, others_set] : sets_) {
          for (const auto& [its_key, its] : others_set.entries) {
            if (its.facts.contains(rank) && own.size() < kMostNamed) own.push_back(name_of(its_key));
          }
        }
        line += own.empty() ? fmt::format("; rank {} has submitted nothing else", rank)
                            : fmt::format("; rank {} waits in {}", rank, fmt::join(own, ", "));
      }
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

std::set<int> Coordinator::awaited(Time limit) const {
  std::set<int> ranks;
  for (const auto& [number, set] : sets_) {
    for (const auto& [key, entry] : set.entries) {
      if (entry.since > limit) continue;
      for (const int rank : missing(set, entry)) ranks.insert(rank);
    }
  }
  return ranks;
}

std::optional<ErrorDetail> Coordinator::overdue(Time limit) const {
  for (const auto& [number, set] : sets_) {
    for (const auto& [key, entry] : set.entries) {
      if (entry.since > limit) continue;
      std::vector<int> absent = missing(set, entry);
      return ErrorDetail{.code = ErrorCode::timeout,
                         .attempted = name_of(key),
                         .cause = fmt::format("{} did not submit it in time", format_ranks(absent)),
                         .ranks = std::move(absent),
                         .hint =
                             "submit it on all ranks of the set; HOROVOD_STALL_SHUTDOWN_TIME_SECONDS and "
                             "DDP_COLLECTIVE_TIMEOUT are the limits"};
    }
  }
  return std::nullopt;
}

}  // namespace ddp::named
