// A set of ranks as one of them sees it: what it has submitted there, the order that has been learned, and what the
// set's group is to do, one step after the other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>
#include <ddp/named_operations.hpp>
#include <ddp/process_group.hpp>
#include <ddp/work.hpp>

#include "named/execution.hpp"
#include "named/messages.hpp"

namespace ddp::named {

class Engine;

/// Of a submitted operation.
struct Pending {
  enum class Phase : std::uint8_t {
    announced,  ///< or about to be
    held,       ///< for its turn in the learned order
    running,
    done,
  };
  using Time = Deadline::Clock::time_point;

  std::shared_ptr<Subject> subject{};
  int set = 0;
  Phase phase = Phase::announced;
  Time since{};
  Time announced{};
  std::optional<Error> error{};
  int last_joined = -1;
};

/// Batches in turn, for ever, and how much of each this rank has submitted.
class LearnedOrder {
 public:
  /// @param eager as Learned::eager; empty: none.
  explicit LearnedOrder(std::vector<std::vector<Key>> batches, std::vector<std::int64_t> eager = {});

  /// Whether the order has it; then it counts as submitted. One without a name may be of a later turn.
  bool hold(const Key& key);
  /// What was negotiated last in its place; of an operation with a name, itself.
  Key model_of(const Key& key) const;
  /// How many batches from the next one on are all there, at most all.
  std::size_t ready() const;
  const std::vector<Key>& next() const { return batches_[next_]; }
  /// Bytes of the next batch that go with the token.
  std::size_t eager() const { return static_cast<std::size_t>(eager_[next_]); }
  /// The next batch, which is taken. Valid until the next call.
  const std::vector<Key>& take();
  /// Equal on ranks that follow the same order and have taken as many.
  std::int64_t proof() const noexcept;

 private:
  /// Of operations without a name that are counted together.
  struct Series {
    std::uint64_t first = 0;            ///< number of the first one of the first turn
    std::vector<std::size_t> places{};  ///< their batches, in a turn
  };
  std::uint64_t turns_of(std::size_t batch) const { return taken_ / batches_.size() + (batch < next_ ? 1 : 0); }

  std::vector<std::vector<Key>> batches_;  ///< numbers are those of the turn that comes next
  std::vector<std::int64_t> eager_;
  std::unordered_map<Key, std::size_t, KeyHash> places_;
  std::unordered_map<Key, Series, KeyHash> series_;
  std::unordered_set<Key, KeyHash> early_;  ///< held for later turns
  std::vector<std::size_t> held_;
  std::vector<Key> last_taken_;
  std::size_t next_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t fingerprint_ = 0;
};

/// What ranks tell each other before they take batches of the learned order.
struct Token {
  struct Head {
    std::int64_t ready = 0;  ///< batches
    std::int64_t ends = 0;   ///< 1: the rank leaves the order
    std::int64_t proof = 0;
  };
  Head head_of(std::size_t rank) const noexcept;
  const std::byte* payload_of(std::size_t rank) const noexcept { return all.data() + rank * own.size() + sizeof(Head); }

  Head head{};
  Deadline::Clock::time_point since{};
  bool told = false;  ///< rank 0 knows that this rank waits
  Bytes own{};        ///< the head, then the values of the next batch if they are eager
  Bytes all{};
};

/// When an exchange was where, for the timeline.
struct StepTimes {
  Pending::Time agreed{};
  Pending::Time started{};
  Pending::Time packed{};
  Pending::Time exchanged{};
};

struct Step {
  StepTimes times{};
  std::vector<std::shared_ptr<Pending>> operations{};  ///< of this rank; none for those of others while it is joined
  std::unique_ptr<Execution> execution{};              ///< null: nothing is exchanged
  std::shared_ptr<Token> token{};
};

using Active = std::unordered_map<Key, std::shared_ptr<Pending>, KeyHash>;

/// Whether an operation that is held for its turn has been so for @p limit, and this rank has submitted nothing since:
/// those before it may not come. While it submits, they may, for twenty times as long.
bool is_stuck(const Active& active, Pending::Time submitted_last, Pending::Time now, std::chrono::milliseconds limit);

/// All but `group` under the engine's mutex.
struct SetState {
  SetState(int of, ProcessGroup its) : number(of), group(std::move(its)) {}

  const int number;
  ProcessGroup group;
  std::uint64_t epoch = 0;
  Active active{};  ///< not done
  Pending::Time submitted_last{};
  std::vector<Request> unsent{};
  std::unordered_map<Key, Facts, KeyHash> known{};  ///< of what has been agreed on last, as it is compared
  std::optional<LearnedOrder> order{};
  std::uint64_t fusion_bytes = 0;    ///< of the learned order
  std::vector<Decision> deferred{};  ///< have come before this rank had left the learned order
  bool ending = false;               ///< this rank leaves the learned order
  bool token = false;                ///< one is queued, or under way
  bool failed = false;               ///< a token has failed: nothing goes on

  std::deque<std::shared_ptr<Step>> queue{};
  std::shared_ptr<Step> running{};
  std::optional<Work> current{};  ///< of `running`
  bool advancing = false;         ///< a thread takes steps from the queue

  bool has_all(const std::vector<Key>& keys) const {
    return std::all_of(keys.begin(), keys.end(), [this](const Key& key) { return active.contains(key); });
  }
};

}  // namespace ddp::named
