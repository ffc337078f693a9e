// What the ranks of a fault case call again and again: an operation of one kind, with the values that it must bring.
#pragma once

#include "collectives/group_engine.hpp"

namespace ddp::collectives::testing {

/// Those that a matrix goes through. recv stands for a send to the next rank and a recv from the last, started as one.
inline constexpr std::array kExchangeKinds{
    OperationKind::all_reduce,     OperationKind::broadcast, OperationKind::all_gather, OperationKind::recv,
    OperationKind::reduce_scatter, OperationKind::barrier,   OperationKind::gather,     OperationKind::all_to_all,
    OperationKind::reduce,         OperationKind::scatter};

/// Of one rank. The root is another rank each time.
class Exchange {
 public:
  /// @param count elements of the larger of its buffers, but for a remainder.
  Exchange(OperationKind kind, std::size_t count, int rank, int ranks)
      : kind_(kind), part_(count / static_cast<std::size_t>(ranks)), rank_(rank), ranks_(ranks) {}

  /// Throws the operation's error; std::logic_error where the values are wrong.
  void run(GroupEngine& group, std::uint64_t number) {
    root_ = static_cast<int>(number % static_cast<std::uint64_t>(ranks_));
    prepare();
    std::vector<Operation> operations(kind_ == OperationKind::recv ? 2 : 1);
    for (Operation& operation : operations) {
      operation.kind = kind_;
      operation.count = count();
      operation.input = input_;
      operation.output = kind_ == OperationKind::recv ? other_ : output();
      operation.root = has_root() ? root_ : -1;
    }
    if (kind_ == OperationKind::recv) {
      operations[0].kind = OperationKind::send;
      operations[0].output = {};
      operations[0].root = (rank_ + 1) % ranks_;
      operations[1].input = {};
      operations[1].root = last();
      group.submit(std::move(operations), {}).wait();
    } else {
      group.submit(std::move(operations.front()), {}).wait();
    }
    check();
  }

  /// What rank @p rank puts in at @p place; small, so that sums are exact.
  static float value(int rank, std::size_t place) { return static_cast<float>(rank + 1 + static_cast<int>(place % 7)); }

 private:
  bool in_place() const {
    return kind_ == OperationKind::all_reduce || kind_ == OperationKind::reduce || kind_ == OperationKind::broadcast;
  }
  bool has_root() const {
    return kind_ == OperationKind::reduce || kind_ == OperationKind::broadcast || kind_ == OperationKind::gather ||
           kind_ == OperationKind::scatter;
  }
  bool is_root() const { return rank_ == root_; }
  int last() const { return (rank_ + ranks_ - 1) % ranks_; }
  std::size_t whole() const { return part_ * static_cast<std::size_t>(ranks_); }
  std::size_t count() const {
    if (kind_ == OperationKind::barrier) return 0;
    return in_place() || kind_ == OperationKind::recv || kind_ == OperationKind::all_to_all ? whole() : part_;
  }
  TensorView output() { return in_place() ? TensorView(input_) : TensorView(other_); }

  float sum(std::size_t place) const {
    float total = 0;
    for (int rank = 0; rank < ranks_; ++rank) total += value(rank, place);
    return total;
  }

  void prepare() {
    std::size_t in = count();
    std::size_t out = in_place() ? 0 : in;
    if (kind_ == OperationKind::all_gather) out = whole();
    if (kind_ == OperationKind::gather) out = is_root() ? whole() : 0;
    if (kind_ == OperationKind::reduce_scatter) in = whole();
    if (kind_ == OperationKind::all_to_all) in = out = whole();
    if (kind_ == OperationKind::scatter) in = is_root() ? whole() : 0;
    input_.resize(in);
    other_.assign(out, -1);
    for (std::size_t i = 0; i < in; ++i) input_[i] = value(rank_, i);
  }

  float expected(std::size_t place) const {
    const std::size_t own = static_cast<std::size_t>(rank_) * part_;
    const int from = part_ == 0 ? 0 : static_cast<int>(place / part_);
    switch (kind_) {
      case OperationKind::all_reduce:
      case OperationKind::reduce: return sum(place);
      case OperationKind::broadcast: return value(root_, place);
      case OperationKind::reduce_scatter: return sum(own + place);
      case OperationKind::scatter: return value(root_, own + place);
      case OperationKind::all_to_all: return value(from, own + place % part_);
      case OperationKind::recv: return value(last(), place);
      default: return value(from, place % part_);  // all_gather, gather
    }
  }

  void check() const {
    if (kind_ == OperationKind::reduce && !is_root()) return;
    const std::vector<float>& got = in_place() ? input_ : other_;
    for (std::size_t i = 0; i < got.size(); i += i < 1000 ? 1 : 13) {  // tests are not optimized
      if (got[i] != expected(i)) throw std::logic_error("wrong values of " + std::string(to_string(kind_)));
    }
  }

  OperationKind kind_;
  std::size_t part_;
  int rank_;
  int ranks_;
  int root_ = 0;
  std::vector<float> input_;
  std::vector<float> other_;
};

}  // namespace ddp::collectives::testing
