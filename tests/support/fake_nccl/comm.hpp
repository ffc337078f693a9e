// A communicator's state, and the rules under which it may be used.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collective.hpp"
#include "cuda_side.hpp"
#include "room.hpp"
#include "settings.hpp"

namespace fake_nccl {

/// The thread that ends a group in non-blocking mode (group.cc: ncclGroupJob).
struct GroupJob {
  std::thread thread;
  std::atomic<bool> joined{false};
  GroupJob() = default;
  GroupJob& operator=(GroupJob&&) = delete;
  ~GroupJob() {
    if (thread.joinable()) thread.detach();  // nobody asked how it went
  }
};

/// Set by abort; seen by all that a communicator waits for. Children that share resources share it.
using AbortFlag = std::shared_ptr<std::atomic<bool>>;

/// What runs on streams one after the other, in the order of launches, whatever the streams (comm->sharedRes'
/// deviceStream). From any thread.
class LaunchOrder {
 public:
  std::uint64_t take();
  bool is_turn(std::uint64_t ticket) const;
  /// Once for each ticket; again is nothing.
  void finish(std::uint64_t ticket);
  bool idle() const;
  int running() const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t taken_ = 0;
  std::uint64_t finished_ = 0;  ///< all below
  std::set<std::uint64_t> early_;
};

}  // namespace fake_nccl

/// Handed out as ncclComm_t. Never freed, so that uses after destruction are found.
struct ncclComm {
  std::atomic<bool> alive{true};
  int rank = -1;
  int size = 0;
  fake_nccl::Place place;
  fake_nccl::ncclConfig_t config{};
  std::string name{};                     ///< a copy of config.commName, which its user may free
  std::shared_ptr<fake_nccl::Room> room;  ///< from the end of init on

  std::atomic<fake_nccl::ncclResult_t> async_result{fake_nccl::ncclSuccess};
  std::atomic<fake_nccl::ncclResult_t> background_error{fake_nccl::ncclSuccess};  ///< as of proxy threads; it sticks
  fake_nccl::AbortFlag abort_flag = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex;                       ///< of the next two
  fake_nccl::AbortFlag child_abort_flag;  ///< of a child that is being made
  std::shared_ptr<fake_nccl::GroupJob> group_job;

  std::atomic<bool> initialized{false};
  std::atomic<bool> destroy_called{false};
  std::atomic<bool> finalize_called{false};
  std::atomic<bool> revoked{false};
  int child_count = 0;
  std::map<std::string, int> shrinks;  ///< how often by which list
  std::atomic<bool> connected{false};
  std::atomic<std::uint64_t> grown{0};

  fake_nccl::LaunchOrder order;
  std::map<int, fake_nccl::Reduction> reductions;
  int next_reduction = fake_nccl::ncclNumOps;
};

namespace fake_nccl {

ncclComm* make_comm();
/// Of this process, those not destroyed.
std::vector<ncclComm*> live_comms();

/// argcheck.cc, CommCheck
ncclResult_t check_comm(ncclComm_t comm, const char* function);
/// init.cc:422, ncclCommEnsureReady
ncclResult_t ensure_ready(ncclComm_t comm);
void set_async_result(ncclComm_t comm, ncclResult_t result);
/// Without the side effect of ncclCommGetAsyncError.
ncclResult_t async_state(ncclComm_t comm);
/// Joins the thread of the last group.
void complete_job(ncclComm_t comm);

/// True: what waits for others must end. Looks now and then whether the others still exist, and notes it if not.
class PeerWatch {
 public:
  explicit PeerWatch(ncclComm* comm) : comm_(comm), room_(comm->room) {}
  bool stopped();

 private:
  ncclComm* comm_;
  std::shared_ptr<Room> room_;  // an abort in another thread takes the communicator's away
  unsigned calls_ = 0;
};

/// Faults for the call @p function on @p comm; those of later (async errors) begin now.
std::vector<Fault> take_faults(const char* function, ncclComm_t comm);

// Making communicators: what init, split, shrink and grow share.

/// init.cc, parseCommConfig and envConfigOverride. @p config may be null: the defaults.
ncclResult_t parse_config(ncclComm_t comm, const ncclConfig_t* config);

/// The room of unique ids; empty: one of them was not made by ncclGetUniqueId.
std::string room_of(const ncclUniqueId* ids, int count);
/// A name that follows from others, the same on all ranks.
std::string derived_name(const std::string& text);
bool make_unique_id(ncclUniqueId* id);

/// What a new communicator does in its own thread: meets the others and compares versions and devices. @p parent may
/// be null; its abort flag counts, too.
ncclResult_t meet(ncclComm_t comm, const std::string& room, ncclComm_t parent, const std::vector<Fault>& faults);

}  // namespace fake_nccl
