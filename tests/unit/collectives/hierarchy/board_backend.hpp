// A backend for tests whose ranks are in one process: a shared board on which each puts its operations. The last rank
// to arrive does the whole collective, plainly. Rank order is kept, limits are checked, failures happen on request.
#pragma once

#include <ddp/backend.hpp>

#include "collectives/hierarchy/hierarchical_backend.hpp"
#include "collectives/reduce_kernels.hpp"

namespace ddp::collectives::testing {

class BoardRequest;

class Board {
 public:
  struct Options {
    int concurrent_collectives = 1;
    bool tells_of_aborts = false;  ///< a rank's abort ends the others' operations, as a closed connection does
    unsigned seed = 1;             ///< of delays, and of whether a send waits for its receive
  };
  Board(int size, const Options& options) : options_(options), size_(size), random_(options.seed) {}

  /// The rank is gone: the others' operations end with peers_failed.
  void kill(int rank) {
    const std::lock_guard lock(mutex_);
    dead_.insert(rank);
  }
  /// How often a rank had more collectives under way than the board allows.
  int violations() const {
    const std::lock_guard lock(mutex_);
    return violations_;
  }

 private:
  friend class BoardRequest;
  friend class BoardBackend;

  struct Collective {
    std::vector<const Operation*> of_rank;
    int arrived = 0;
    Outcome outcome = Outcome::running;
  };
  struct Message {
    const Operation* operation = nullptr;
    std::uint64_t fingerprint = 0;
    std::shared_ptr<Outcome> outcome = std::make_shared<Outcome>(Outcome::running);
    std::vector<std::byte> kept;  ///< of a send that did not wait
  };
  using Channel = std::tuple<int, int, std::uint32_t>;  // from, to, tag

  void execute(Collective& collective) {
    const Operation& first = *collective.of_rank.front();
    for (const Operation* each : collective.of_rank) {
      if (each->kind == first.kind && each->count == first.count && each->counts == first.counts &&
          each->dtype == first.dtype && each->root == first.root && each->reduce_op == first.reduce_op &&
          each->sequence == first.sequence) {
        continue;
      }
      collective.outcome = Outcome::mismatch;
      return;
    }
    std::vector<std::vector<std::byte>> inputs;
    for (const Operation* each : collective.of_rank) {
      const auto* data = static_cast<const std::byte*>(each->input.data());
      inputs.emplace_back(data, data + each->input.size_bytes());
    }
    for (int rank = 0; rank < size_; ++rank) {
      const std::vector<std::byte> result = result_of(first, inputs, rank);
      const TensorView& output = collective.of_rank[static_cast<std::size_t>(rank)]->output;
      if (!result.empty()) std::memcpy(output.data(), result.data(), std::min(result.size(), output.size_bytes()));
    }
    collective.outcome = Outcome::ok;
  }

  std::vector<std::byte> result_of(const Operation& operation, const std::vector<std::vector<std::byte>>& inputs,
                                   int rank) const {
    const std::size_t part = operation.count * size_of(operation.dtype);
    const auto own = static_cast<std::size_t>(rank);
    const auto root = static_cast<std::size_t>(operation.root);
    const bool other = operation.root != rank;
    const auto reduced = [&](std::size_t first) {
      std::vector<std::byte> sum(inputs[0].data() + first, inputs[0].data() + first + part);
      for (std::size_t each = 1; each < inputs.size(); ++each) {
        const std::array<const void*, 2> both{sum.data(), inputs[each].data() + first};
        Reduction(operation.dtype, operation.reduce_op, 1).combine(sum.data(), both, operation.count);
      }
      return sum;
    };
    const auto cut = [](const std::vector<std::byte>& from, std::size_t first, std::size_t bytes) {
      return std::vector<std::byte>(from.data() + first, from.data() + first + bytes);
    };
    std::vector<std::byte> joined;
    switch (operation.kind) {
      case OperationKind::all_reduce: return reduced(0);
      case OperationKind::reduce:  // the others' tensors are undefined afterwards
        return other ? std::vector<std::byte>(part, std::byte{0xee}) : reduced(0);
      case OperationKind::reduce_scatter: return reduced(own * part);
      case OperationKind::broadcast: return inputs[root];
      case OperationKind::scatter: return cut(inputs[root], own * part, part);
      case OperationKind::gather:
        if (other) return {};
        [[fallthrough]];
      case OperationKind::all_gather:
      case OperationKind::all_gather_v:
        for (const auto& input : inputs) joined.insert(joined.end(), input.begin(), input.end());
        return joined;
      case OperationKind::all_to_all: {
        const std::size_t block = part / inputs.size();
        for (const auto& input : inputs) {
          joined.insert(joined.end(), input.data() + own * block, input.data() + (own + 1) * block);
        }
        return joined;
      }
      default: return {};
    }
  }

  void match(const Channel& channel) {
    auto& sends = sends_[channel];
    auto& receives = receives_[channel];
    while (!sends.empty() && !receives.empty()) {
      const Operation& to = *receives.front().operation;
      const void* from = sends.front().operation ? sends.front().operation->input.data() : sends.front().kept.data();
      const bool fits = sends.front().fingerprint == receives.front().fingerprint;
      if (fits && to.output.size_bytes() > 0) std::memcpy(to.output.data(), from, to.output.size_bytes());
      *sends.front().outcome = *receives.front().outcome = fits ? Outcome::ok : Outcome::mismatch;
      sends.pop_front();
      receives.pop_front();
    }
  }

  const Options options_;
  const int size_;
  mutable std::mutex mutex_;
  std::mt19937 random_;
  std::map<std::uint64_t, std::shared_ptr<Collective>> collectives_;  ///< by position among a rank's
  std::map<Channel, std::deque<Message>> sends_;
  std::map<Channel, std::deque<Message>> receives_;
  std::set<int> dead_;
  std::set<int> aborted_;
  int violations_ = 0;
};

class BoardBackend final : public Backend {
 public:
  BoardBackend(std::shared_ptr<Board> board, int rank) : board_(std::move(board)), rank_(rank) {
    traits_.serves_cpu = traits_.completes_inline = traits_.detects_peer_death = true;
    traits_.concurrent_collectives = board_->options_.concurrent_collectives;
  }
  const BackendTraits& traits() const noexcept override { return traits_; }
  Bytes address() const override { return {}; }
  void connect(const std::vector<Bytes>& /*none*/, Deadline /*immediate*/) override {}
  Request& init(std::span<const Operation> operations, Deadline deadline) override;
  void abort() noexcept override {
    const std::lock_guard lock(board_->mutex_);
    board_->aborted_.insert(rank_);
  }
  void close(Deadline /*immediate*/) noexcept override {}
  void rest(std::chrono::microseconds /*limit*/) noexcept override { std::this_thread::yield(); }

 private:
  friend class BoardRequest;
  std::shared_ptr<Board> board_;
  int rank_;
  BackendTraits traits_;
  std::uint64_t posted_ = 0;  ///< collectives
  int under_way_ = 0;
  std::vector<std::unique_ptr<BoardRequest>> requests_;
};

class BoardRequest final : public Request {
 public:
  BoardRequest(BoardBackend& backend, std::span<const Operation> operations, Deadline deadline)
      : backend_(backend), operations_(operations), deadline_(deadline) {}

  void post() noexcept override {
    Board& board = *backend_.board_;
    const std::lock_guard lock(board.mutex_);
    if (!operations_.front().is_transfer() && ++backend_.under_way_ > board.options_.concurrent_collectives) {
      ++board.violations_;
    }
    for (const Operation& operation : operations_) {
      operation.is_transfer() ? post_message(board, operation) : post_collective(board, operation);
    }
  }
  Outcome poll() noexcept override {
    Board& board = *backend_.board_;
    const std::lock_guard lock(board.mutex_);
    if (outcome_ == Outcome::running) outcome_ = look(board);
    if (outcome_ == Outcome::ok && board.random_() % 4 == 0) return Outcome::running;
    if (outcome_ != Outcome::running && !operations_.front().is_transfer() && !std::exchange(counted_, true)) {
      --backend_.under_way_;
    }
    return outcome_;
  }
  Failure failure() const override { return failure_; }
  void release() noexcept override { released_ = true; }
  bool released() const { return released_; }

 private:
  void post_collective(Board& board, const Operation& operation) {
    auto& entry = board.collectives_[++backend_.posted_];
    if (!entry) {
      entry = std::make_shared<Board::Collective>();
      entry->of_rank.resize(static_cast<std::size_t>(board.size_));
    }
    collectives_.push_back(entry);
    entry->of_rank[static_cast<std::size_t>(backend_.rank_)] = &operation;
    if (++entry->arrived < board.size_) return;
    if (board.dead_.empty() && board.aborted_.empty()) board.execute(*entry);
    board.collectives_.erase(backend_.posted_);
  }
  void post_message(Board& board, const Operation& operation) {
    const bool sends = operation.kind == OperationKind::send;
    const Board::Channel channel{sends ? backend_.rank_ : operation.root, sends ? operation.root : backend_.rank_,
                                 operation.tag};
    Board::Message message;
    message.operation = &operation;
    message.fingerprint = operation.fingerprint();
    if (sends && board.random_() % 2 == 0) {  // does not wait
      const auto* data = static_cast<const std::byte*>(operation.input.data());
      message.kept.assign(data, data + operation.input.size_bytes());
      message.operation = nullptr;
    } else {
      messages_.push_back(message.outcome);
    }
    (sends ? board.sends_ : board.receives_)[channel].push_back(std::move(message));
    board.match(channel);
  }
  Outcome look(Board& board) {
    if (board.aborted_.contains(backend_.rank_)) return Outcome::aborted;
    std::vector<Outcome> outcomes;
    for (const auto& each : messages_) outcomes.push_back(*each);
    for (const auto& each : collectives_) outcomes.push_back(each->outcome);
    const auto is_ok = [](Outcome each) { return each == Outcome::ok; };
    if (std::all_of(outcomes.begin(), outcomes.end(), is_ok)) return Outcome::ok;
    if (std::find(outcomes.begin(), outcomes.end(), Outcome::mismatch) != outcomes.end()) {
      failure_.cause = "different calls";
      return Outcome::mismatch;
    }
    std::set<int> gone = board.dead_;
    if (board.options_.tells_of_aborts) gone.insert(board.aborted_.begin(), board.aborted_.end());
    if (!gone.empty()) {
      failure_ = {.ranks = {gone.begin(), gone.end()}, .cause = "gone"};
      return Outcome::peers_failed;
    }
    if (!deadline_.expired()) return Outcome::running;
    failure_.cause = "deadline";
    for (const auto& each : collectives_) {
      for (int rank = 0; rank < board.size_; ++rank) {
        if (each->of_rank[static_cast<std::size_t>(rank)] == nullptr) failure_.ranks.push_back(rank);
      }
    }
    if (collectives_.empty() && operations_.size() == 1) failure_.ranks.push_back(operations_.front().root);
    return Outcome::timeout;
  }

  BoardBackend& backend_;
  std::span<const Operation> operations_;
  Deadline deadline_;
  std::vector<std::shared_ptr<Board::Collective>> collectives_;
  std::vector<std::shared_ptr<Outcome>> messages_;
  Outcome outcome_ = Outcome::running;
  Failure failure_;
  bool counted_ = false;
  bool released_ = false;
};

inline Request& BoardBackend::init(std::span<const Operation> operations, Deadline deadline) {
  std::erase_if(requests_, [](const auto& request) { return request->released(); });
  return *requests_.emplace_back(std::make_unique<BoardRequest>(*this, operations, deadline));
}

// A hierarchical backend of each rank of a layout, over boards.

/// The boards of a group.
class BoardHierarchy {
 public:
  BoardHierarchy(std::vector<int> labels, const Board::Options& options, std::size_t segment_bytes)
      : labels_(std::move(labels)), segment_bytes_(segment_bytes) {
    const hierarchy::Layout layout(0, labels_);
    for (int domain = 0; domain < layout.domains(); ++domain) {
      inner_.push_back(std::make_shared<Board>(static_cast<int>(layout.members_of(domain)), options));
    }
    outer_ = std::make_shared<Board>(layout.domains(), options);
    flat_ = std::make_shared<Board>(layout.size(), options);
  }

  std::unique_ptr<Backend> make(int rank) const {
    hierarchy::Layout layout(rank, labels_);
    hierarchy::Parts parts;
    if (layout.neighbours() > 1) parts.inner = std::make_unique<BoardBackend>(inner(layout.domain()), layout.index());
    if (layout.domains() > 1) {
      parts.flat = std::make_unique<BoardBackend>(flat_, rank);
      if (layout.leads()) parts.outer = std::make_unique<BoardBackend>(outer_, layout.domain());
    }
    return std::make_unique<hierarchy::HierarchicalBackend>(std::move(layout), std::move(parts), segment_bytes_);
  }

  /// The rank is gone, for all parts that it is in.
  void kill(int rank) const {
    const hierarchy::Layout layout(rank, labels_);
    inner(layout.domain())->kill(layout.index());
    flat_->kill(rank);
    if (layout.leads()) outer_->kill(layout.domain());
  }

  int violations() const {
    int sum = outer_->violations() + flat_->violations();
    for (const auto& board : inner_) sum += board->violations();
    return sum;
  }

 private:
  const std::shared_ptr<Board>& inner(int domain) const { return inner_[static_cast<std::size_t>(domain)]; }

  std::vector<int> labels_;
  std::size_t segment_bytes_;
  std::vector<std::shared_ptr<Board>> inner_;
  std::shared_ptr<Board> outer_;
  std::shared_ptr<Board> flat_;
};

}  // namespace ddp::collectives::testing
