// A rank's named operations: from submission to the end, in step with what rank 0 decides or the learned order says.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ddp/named_operations.hpp>

#include "collectives/flight/flight_recorder.hpp"
#include "collectives/group_engine.hpp"
#include "named/coordinator.hpp"
#include "named/set_state.hpp"
#include "named/star.hpp"
#include "named/timeline.hpp"

namespace ddp::named {

/// Thread-safe. Functions with a Lock are called with the mutex.
class Engine final : public StarUser, public std::enable_shared_from_this<Engine> {
 public:
  using PendingPointer = std::shared_ptr<Pending>;

  /// Collective.
  Engine(const ProcessGroup& parent, const NamedOptions& options);
  ~Engine() override;
  void start() { star_.begin(*this); }

  PendingPointer submit(Request request, NamedCall call);
  PendingPointer join();
  bool wait(Pending& pending, Deadline deadline);
  bool done(Pending& pending);
  int add_set(const std::vector<int>& ranks, Deadline deadline);
  void remove_set(int number, Deadline deadline);
  std::vector<int> ranks_of(int number);
  int own_rank() const noexcept { return own_; }
  void shutdown() noexcept;
  NamedCounts counts();
  /// Of rank 0; elsewhere without effect. @param essential: a file that cannot be written ends all operations.
  void start_timeline(const std::string& file, bool mark_exchanges, bool essential);
  void stop_timeline();
  /// Whether this rank records what it does, for a timeline.
  bool recording();
  /// As NamedOperations::record.
  void record(std::string name, std::int64_t ready, std::int64_t started, std::int64_t done);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using SetPointer = std::shared_ptr<SetState>;

  // StarUser
  void arrived(int rank, const Bytes& message) override;
  void lost(int rank, const std::string& cause) override;
  std::optional<Deadline> round() override;

  // agreement
  SetState& set_of(const Lock& lock, int number, const Key& key);
  void hold(const Lock& lock, SetState& set, PendingPointer pending);
  void flush(const Lock& lock);
  void send(const Lock& lock, ToCoordinator message);
  void decide(const Lock& lock);
  void apply(const Lock& lock, FromCoordinator message);
  void apply_decision(const Lock& lock, Decision& decision);
  void apply_learned(const Lock& lock, Learned& learned);
  void leave_order(const Lock& lock, SetState& set);
  void leave_late(const Lock& lock, const Stuck& stuck);
  void tell_where_late(const Lock& lock, SetState& set);
  void leave_where_stuck(const Lock& lock, SetState& set, std::chrono::milliseconds limit);
  std::optional<Deadline> look_after_waiting(const Lock& lock);
  /// Of other ranks than 0. @return when to look again.
  std::optional<Deadline> look_after_first(const Lock& lock);

  // stalls
  struct Inquiry;
  /// Of rank 0. @return when to look again.
  std::optional<Deadline> report_stalls(const Lock& lock);
  void ask(const Lock& lock, const std::set<int>& ranks);
  void answer(const Lock& lock, Question question);
  void take_answer(const Lock& lock, int rank, Doing doing);
  std::string last_operation(const Lock& lock) const;

  // steps
  void offer_token(const Lock& lock, SetState& set);
  void push(const Lock& lock, SetState& set, std::vector<PendingPointer> operations,
            std::vector<std::shared_ptr<Subject>> subjects);
  bool has_steps(const Lock& lock) const;
  void advance_all();
  void advance(const SetPointer& set);
  void drive(const SetPointer& set);
  std::optional<Work> start_token(SetState& set, Token& token);
  void ended(const SetPointer& set, const std::optional<Error>& error);
  void finish_step(const SetPointer& set, const std::optional<Error>& error);
  /// Fills the values of the next batch into the token. @return whether this rank has what was learned
  static bool fill_eager(const Lock& lock, const SetState& set, Token& token);
  /// Ends the next batch by what came with the token. @return whether all ranks' values did
  bool combine_eager(const Lock& lock, SetState& set, const Token& token);
  bool gather_eager(const Lock& lock, SetState& set, const Token& token);
  /// Takes @p ready batches of the learned order, those that may be fused in one exchange.
  void take_batches(const Lock& lock, SetState& set, std::int64_t ready);
  void take_token(const Lock& lock, SetState& set, const Token& token);

  // timeline
  void set_recording(const Lock& lock, const Recording& recording);
  /// Of an operation that is about to finish. @param fused with others, of which it is the @p first.
  void record(const Lock& lock, const Pending& pending, const StepTimes& times, bool fused = false, bool first = true);
  void keep(const Lock& lock, Span span);
  void send_spans(const Lock& lock, std::int64_t asked, bool last);
  void take_spans(const Lock& lock, int rank, const Spans& spans);
  /// @return when to call it again.
  std::optional<Deadline> look_after_timeline();

  // ends
  void finish(const Lock& lock, Pending& pending, const std::optional<Error>& error);
  void record_join(const Lock& lock);
  void finish_join(const Lock& lock, const std::optional<Error>& error);
  void end_all(const Lock& lock, const Error& error);
  void end_set(const Lock& lock, SetState& set, const Error& error);
  void tell_end(const Lock& lock, const Error& error);

  ProcessGroup parent_;
  const NamedOptions options_;
  const int own_;
  const std::chrono::milliseconds limit_;     ///< of what waits for other ranks
  const std::chrono::milliseconds patience_;  ///< in the learned order, before rank 0 is to look for what is missing
  const collectives::ForkGuard fork_guard_;
  Star star_;

  std::mutex changing_sets_;
  std::uint64_t changes_ = 0;  ///< calls of add_set and remove_set

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::map<int, SetPointer> sets_;
  std::optional<Coordinator> coordinator_;  ///< of rank 0
  PendingPointer joined_;
  /// For `ddp-info status`: a join is a barrier of a group that ranks enter by it.
  std::shared_ptr<collectives::FlightGroup> joins_;
  collectives::FlightGroup::Slot join_slot_ = 0;
  bool join_told_ = true;  ///< rank 0 knows of it
  std::optional<Error> end_;
  std::optional<std::pair<Error, Deadline>> suspicion_;  ///< becomes the end, unless another explains it by then
  bool woken_ = false;                                   ///< the star's thread will flush
  int added_ = 0;
  Key last_key_;  ///< of what this rank has submitted last
  std::optional<Pending::Time> last_since_;
  std::optional<Pending::Time> reported_;
  std::optional<Deadline> first_due_;  ///< by which rank 0 answers what this rank has announced
  std::shared_ptr<Inquiry> inquiry_;   ///< under way
  std::uint64_t inquiries_ = 0;
  bool answers_ = false;  ///< `answering_` is at it
  std::thread answering_;
  NamedCounts counts_;

  bool recording_ = false;
  std::chrono::system_clock::duration to_epoch_{};  ///< from Pending::Time
  Spans spans_{};                                   ///< not sent, or written
  std::optional<Deadline> spans_due_;
  std::shared_ptr<Timeline> timeline_;  ///< of rank 0
  std::set<int> recorders_;             ///< of rank 0: other ranks that have not sent their last Spans
};

/// For what is not an Error, as std::bad_alloc.
Error unexpected(const char* attempted, const std::exception& problem);

}  // namespace ddp::named
