// A set of ranks as one of them sees it: what it has submitted there, the order that has been learned, and what the
// set's group is to do, one step after the other.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
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
  std::optional<Error> error{};
  int last_joined = -1;
};

/// Batches in turn, for ever, and how much of each this rank has submitted.
class LearnedOrder {
 public:
  explicit LearnedOrder(std::vector<std::vector<Key>> batches);

  bool contains(const Key& key) const { return places_.contains(key); }
  void held(const Key& key) { ++held_[places_.at(key)]; }
  /// How many batches from the next one on are all there, at most all.
  std::size_t ready() const;
  /// The next batch, which is taken.
  const std::vector<Key>& take();
  /// Equal on ranks that follow the same order and have taken as many.
  std::int64_t proof() const noexcept;

 private:
  std::vector<std::vector<Key>> batches_;
  std::map<Key, std::size_t> places_;
  std::vector<std::size_t> held_;
  std::size_t next_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t fingerprint_ = 0;
};

/// What ranks tell each other before they take batches of the learned order.
struct Token {
  enum Field : std::size_t { ready, ends, proof, fields };
  std::vector<std::int64_t> own{};
  std::vector<std::int64_t> all{};
};

struct Step {
  std::vector<std::shared_ptr<Pending>> operations{};  ///< of this rank; none for those of others while it is joined
  std::unique_ptr<Execution> execution{};              ///< null: nothing is exchanged
  std::shared_ptr<Token> token{};
};

/// All but `group` under the engine's mutex.
struct SetState {
  SetState(int of, ProcessGroup its) : number(of), group(std::move(its)) {}

  const int number;
  ProcessGroup group;
  std::uint64_t epoch = 0;
  std::map<Key, std::shared_ptr<Pending>> active{};  ///< not done
  std::vector<Request> unsent{};
  std::map<Key, Facts> known{};  ///< of what has been agreed on last, as it is compared
  std::optional<LearnedOrder> order{};
  bool ending = false;  ///< this rank leaves the learned order
  bool token = false;   ///< one is queued, or under way

  std::deque<std::shared_ptr<Step>> queue{};
  std::shared_ptr<Step> running{};
  std::optional<Work> current{};  ///< of `running`
  bool advancing = false;         ///< a thread takes steps from the queue
};

}  // namespace ddp::named
