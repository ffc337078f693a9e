// A job whose ranks call collectives, one of them wrongly, until nothing goes on: what their dumps would say.
#pragma once

#include "flight/rank_dump.hpp"

namespace ddp::tools::test {

enum class Fault { none, killed, missing, extra, other_operation, other_size, other_dtype, swapped };

class FlightJob {
 public:
  struct Step {
    std::size_t group = 0;
    Operation operation;
  };

  /// @param depth how many calls a rank makes before it waits. @param kept how many calls a rank's ring has.
  /// @param distinct no two calls of a rank are the same.
  FlightJob(unsigned seed, Fault fault, bool several_groups, int depth, std::size_t kept, bool distinct = false)
      : random_(seed), fault_(fault), depth_(depth), kept_(kept) {
    groups_.push_back({0, 1, 2, 3, 4, 5, 6, 7});
    // Any two have three members in common: of two that differ in the order of two groups, neither can be blamed.
    if (several_groups) groups_.insert(groups_.end(), {{0, 1, 2, 3}, {4, 5, 6, 7}, {1, 3, 5, 7, 6, 2}});
    for (std::size_t rank = 0; rank < kRanks; ++rank) ranks_.emplace_back();
    for (int i = 0; i < 40; ++i) {
      Step step = random_step(random(groups_.size()));
      if (distinct) step.operation.count += static_cast<std::size_t>(1000 * (i + 1));
      for (const int rank : groups_[step.group]) program(rank).push_back(step);
    }
    culprit_ = static_cast<int>(random(kRanks));
    if (fault_ != Fault::none) spoil(program(culprit_));
    for (int& offset : clock_offsets_) offset = static_cast<int>(random(2000)) - 1000;
  }

  int culprit() const { return culprit_; }

  /// Whether all ranks come to their end.
  bool run() {
    for (bool going = true; going;) {
      going = false;
      for (std::size_t rank = 0; rank < kRanks; ++rank) going |= call(static_cast<int>(rank));
      for (std::size_t group = 0; group < groups_.size(); ++group) going |= complete(group);
    }
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return rank.next == rank.program.size() && rank.unfinished == 0; });
  }

  /// @param told whether the survivors' errors name a killed rank.
  std::vector<flight::RankDump> dumps(bool told = true) const {
    std::vector<flight::RankDump> dumps;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const bool killed = fault_ == Fault::killed && static_cast<int>(rank) == culprit_;
      if (killed) continue;
      const std::int64_t offset = std::int64_t{clock_offsets_[rank]} * 1'000'000'000 + kEpoch;
      flight::RankDump dump;
      dump.rank = static_cast<int>(rank);
      dump.written_ns = offset + now_;
      if (fault_ == Fault::killed && told) dump.lost = {culprit_};
      for (std::size_t group = 0; group < groups_.size(); ++group) {
        dump.groups.push_back({"group" + std::to_string(group), 0, groups_[group], 0});
      }
      const auto& calls = ranks_[rank].calls;
      for (const flight::Call& call : calls) {
        auto& last = dump.groups[call.group].last_queued;
        last = std::max(last, call.sequence);
      }
      dump.calls.assign(calls.end() - static_cast<std::ptrdiff_t>(std::min(kept_, calls.size())), calls.end());
      for (flight::Call& call : dump.calls) {
        for (auto* time : {&call.queued_ns, &call.started_ns, &call.finished_ns}) {
          if (*time != 0) *time += offset;
        }
      }
      dumps.push_back(std::move(dump));
    }
    return dumps;
  }

 private:
  static constexpr std::size_t kRanks = 8;
  static constexpr std::int64_t kEpoch = 1'700'000'000'000'000'000;

  struct Rank {
    std::vector<Step> program;
    std::size_t next = 0;
    int unfinished = 0;
    std::vector<flight::Call> calls;
    std::map<std::size_t, std::uint64_t> sequences;  ///< by group
  };

  std::size_t random(std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_); }
  std::vector<Step>& program(int rank) { return ranks_[static_cast<std::size_t>(rank)].program; }

  Step random_step(std::size_t group) {
    Step step;
    step.group = group;
    step.operation.kind = random(4) == 0 ? OperationKind::broadcast : OperationKind::all_reduce;
    step.operation.count = 100 * (1 + random(3));
    step.operation.dtype = random(4) == 0 ? DType::bfloat16 : DType::float32;
    if (step.operation.kind == OperationKind::broadcast) step.operation.root = static_cast<int>(random(2));
    return step;
  }

  void spoil(std::vector<Step>& program) {
    const std::size_t at = 5 + random(program.size() - 10);
    Step& step = program[at];
    const auto place = program.begin() + static_cast<std::ptrdiff_t>(at);
    switch (fault_) {
      case Fault::none: break;
      case Fault::killed: program.resize(at); break;
      case Fault::missing: program.erase(place); break;
      case Fault::extra: program.insert(place, random_step(step.group)); break;
      case Fault::other_operation: {
        step.operation.kind = OperationKind::all_to_all;
        step.operation.root = -1;
        break;
      }
      case Fault::other_size: step.operation.count += 1; break;
      case Fault::other_dtype: step.operation.dtype = DType::float64; break;
      case Fault::swapped: std::swap(program[at], program[at + 1]); break;
    }
  }

  bool call(int number) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    if (rank.next == rank.program.size() || rank.unfinished == depth_) return false;
    const Step& step = rank.program[rank.next++];
    Operation operation = step.operation;
    operation.sequence = ++rank.sequences[step.group];
    flight::Call call;
    call.number = rank.calls.size() + 1;
    call.group = step.group;
    call.kind = operation.kind;
    call.sequence = operation.sequence;
    call.dtype = operation.dtype;
    call.count = operation.count;
    call.root = operation.root;
    call.fingerprint = operation.fingerprint();
    call.queued_ns = ++now_;
    rank.calls.push_back(call);
    ++rank.unfinished;
    return true;
  }

  /// Finishes the next collective of a group if all have called it.
  bool complete(std::size_t group) {
    const std::uint64_t sequence = completed_[group] + 1;
    std::vector<flight::Call*> calls;
    for (const int number : groups_[group]) {
      for (flight::Call& call : ranks_[static_cast<std::size_t>(number)].calls) {
        if (call.group == group && call.sequence == sequence) calls.push_back(&call);
      }
    }
    if (calls.size() != groups_[group].size()) return false;
    for (flight::Call* call : calls) {
      if (call->started_ns == 0) call->started_ns = ++now_;
      if (call->fingerprint != calls.front()->fingerprint) return false;
    }
    for (flight::Call* call : calls) {
      call->state = flight::CallState::done;
      call->finished_ns = ++now_;
    }
    for (const int number : groups_[group]) --ranks_[static_cast<std::size_t>(number)].unfinished;
    completed_[group] = sequence;
    return true;
  }

  std::mt19937 random_;
  const Fault fault_;
  const int depth_;
  const std::size_t kept_;
  std::vector<std::vector<int>> groups_;
  std::vector<Rank> ranks_;
  int culprit_ = -1;
  std::array<int, kRanks> clock_offsets_{};  ///< seconds
  std::map<std::size_t, std::uint64_t> completed_;
  std::int64_t now_ = 0;
};

}  // namespace ddp::tools::test
