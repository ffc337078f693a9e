// Training on inputs of different lengths: ranks that have run out take part in the other ranks' collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ddp/process_group.hpp>

namespace ddp {

class Join;

/// What the ranks that still have inputs are about to do.
enum class JoinEvent : std::uint8_t {
  step,        ///< a step that exchanges gradients
  local_step,  ///< a step of Reducer::no_sync
  buffers,     ///< a broadcast of buffers
};

/// How a Join treats ranks that have run out. Equal on all ranks.
struct JoinOptions {
  /// Divides gradients by the number of all ranks, so that ranks that have run out count as zeros; false: by the number
  /// of ranks that still have inputs. Only without hooks.
  bool divide_by_initial_world_size = true;
  /// As soon as a rank has run out, all ranks throw Error(aborted) that names the ranks that have.
  bool throw_on_early_termination = false;
  bool enable = true;  ///< false: the Join does nothing
};

/// What communicates in each step: a Reducer (Reducer::joinable), an optimizer that shares its work.
class Joinable {
 public:
  Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;
  virtual ~Joinable() = default;

  virtual ProcessGroup& join_group() = 0;  ///< the group whose ranks run out
  /// A Join begins. The first of its Joinables calls Join::announce at the start of each of its events.
  virtual void enter_join(Join& join) = 0;
  virtual void leave_join() noexcept = 0;  ///< the Join ends, possibly by an error
  /// This rank has run out: start the same collectives as the other ranks' Joinables in their @p event, but contribute
  /// nothing. Error(invalid_argument) with ranks means that this has failed on all ranks, and that they may continue.
  virtual void shadow(JoinEvent event) = 0;
  /// All ranks have run out: take over the state of rank @p last of the group, one of the last to do so. Collective.
  virtual void finish_join(int last) = 0;
};

/// PyTorch's Join: make one on every rank before the loop over the inputs, and call finish() after it.
///
///     Join join({&reducer.joinable(buffers)});
///     for (const Batch& batch : mine) { ... }
///     join.finish();
///
/// Until all ranks have called it, finish() repeats the others' steps; then all ranks get the last rank's parameters
/// and buffers. Each step costs one more small operation. A rank that leaves the loop by an exception no longer takes
/// part: the others name it when their deadlines pass. Used by one thread.
class Join {
 public:
  /// @param joinables of one group, in the order of their collectives in a step. They must outlive the Join, or
  /// finish(). Throws Error(invalid_argument).
  explicit Join(std::vector<Joinable*> joinables, JoinOptions options = {});
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;
  /// Calls finish(), unless it was called or an exception is propagating. Errors are logged.
  ~Join();

  /// Throws what an exchange throws; may be called again if it failed on all ranks because gradients were missing.
  /// After any other error the Join has ended. May rebuild a Reducer's buckets: call bucket_view() again afterwards.
  void finish();
  /// Instead of finish(): this rank no longer takes part, as after an exception.
  void abandon() noexcept { leave(); }

  // instead of finish(), for programs that learn by other means whether all ranks have run out, as PyTorch's Join does

  /// This rank has run out, others have not: repeats what they do up to the end of their next step. @return its kind.
  /// Throws like finish(), and invalid_argument if all ranks have run out.
  JoinEvent shadow_step();
  /// No rank has inputs left: copies the last rank's parameters and buffers to all ranks. Collective.
  void end();

  // for Joinables

  const JoinOptions& options() const noexcept { return options_; }  ///< as given to the constructor
  /// Announces the next event to the ranks that have run out. No effect unless @p from is the first Joinable. Throws
  /// aborted, and mismatch if ranks have other options, or announced other events before.
  void announce(const Joinable& from, JoinEvent event);
  /// How many ranks take part in the last announced event. Waits for the announcement; throws mismatch if ranks
  /// announced different events.
  int active();
  /// The highest of these ranks, as a rank in the group.
  int highest_active();

 private:
  struct Round;
  void exchange(std::int32_t own);
  /// Waits for the announcement. Throws Error(mismatch) if ranks do different things.
  void read();
  /// Announces that this rank has run out, and repeats what the others do; nothing if they have run out, too.
  std::optional<JoinEvent> shadow_next();
  template <class Body>
  void leave_if_it_fails(Body&& body);
  void check_round(const Round& round) const;
  void leave() noexcept;

  std::vector<Joinable*> joinables_;
  JoinOptions options_;
  std::optional<ProcessGroup> group_;
  std::shared_ptr<Round> round_;
  std::optional<Work> under_way_;
  std::vector<int> active_;  ///< ranks of the last announcement
  int last_ = 0;             ///< the highest rank that has been active last
  std::int32_t event_ = 0;   ///< of the last announcement
  int exceptions_;           ///< under way when it began
  std::size_t entered_ = 0;  ///< how many Joinables
  bool inside_ = false;
};

}  // namespace ddp
