#include "comm.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <system_error>

#include "base/byte_stream.hpp"
#include "fake_nccl.hpp"
#include "group.hpp"
#include "registrations.hpp"

namespace fake_nccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<ncclComm>> all;
};
Registry& registry() {
  static auto* registry = new Registry;  // NOLINT(*-owning-memory): communicators may be leaked
  return *registry;
}

}  // namespace

std::uint64_t LaunchOrder::take() {
  const std::lock_guard lock(mutex_);
  return taken_++;
}
bool LaunchOrder::is_turn(std::uint64_t ticket) const {
  const std::lock_guard lock(mutex_);
  return finished_ == ticket;
}
void LaunchOrder::finish(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  if (ticket < finished_) return;
  early_.insert(ticket);
  while (early_.erase(finished_) != 0) ++finished_;
}
bool LaunchOrder::idle() const { return running() == 0; }
int LaunchOrder::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(taken_ - finished_ - early_.size());
}

ncclComm* make_comm() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  return known.all.emplace_back(std::make_unique<ncclComm>()).get();
}

std::vector<ncclComm*> live_comms() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::vector<ncclComm*> live;
  for (const auto& comm : known.all) {
    if (comm->alive) live.push_back(comm.get());
  }
  return live;
}

ncclResult_t check_comm(ncclComm_t comm, const char* function) {
  if (comm == nullptr) {
    note_error(std::string(function) + " : comm argument is NULL");
    return ncclInvalidArgument;
  }
  if (!comm->alive) {  // "Error: corrupted comm object detected", if it has not crashed
    complain(std::string(function) + " with a communicator that was destroyed or aborted");
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

void set_async_result(ncclComm_t comm, ncclResult_t result) { comm->async_result = result; }

ncclResult_t async_state(ncclComm_t comm) {
  const ncclResult_t state = comm->async_result;
  return state == ncclSuccess ? comm->background_error.load() : state;
}

void complete_job(ncclComm_t comm) {
  std::shared_ptr<GroupJob> job;
  {
    const std::lock_guard lock(comm->mutex);
    job.swap(comm->group_job);
  }
  if (job && !job->joined.exchange(true)) job->thread.join();
}

ncclResult_t ensure_ready(ncclComm_t comm) {
  if (*comm->abort_flag) {
    complete_job(comm);
    return ncclSuccess;
  }
  const ncclResult_t state = async_state(comm);
  if (state == ncclSuccess) complete_job(comm);
  if (state == ncclInProgress) {
    note_error("Attempt to use communicator before the previous operation returned ncclSuccess");
    return ncclInvalidArgument;
  }
  return state;
}

bool PeerWatch::stopped() {
  if (*comm_->abort_flag) return true;
  constexpr unsigned kPeriod = 200;  // some 20 ms
  if (++calls_ % kPeriod == 0 && settings().report_peers && room_) {
    if (const int missing = room_->missing(); missing >= 0 && comm_->background_error == ncclSuccess) {
      note_error("rank " + std::to_string(missing) + ": connection closed by remote peer");
      comm_->background_error = ncclRemoteError;
    }
  }
  return false;
}

std::vector<Fault> take_faults(const char* function, ncclComm_t comm) {
  std::vector<Fault> faults = take_faults(std::string_view(function), comm->rank);
  for (const Fault& fault : faults) {
    if (fault.action != Action::async) continue;
    std::thread([comm, fault] {  // communicators are never freed
      std::this_thread::sleep_for(std::chrono::milliseconds(fault.value));
      comm->background_error = fault.result;
    })
        .detach();
  }
  return faults;
}

/// init.cc:3449: when it finds success, it joins the thread of the last group.
FAKE_NCCL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (const auto result = check_comm(comm, "ncclGetAsyncError"); result != ncclSuccess) return result;
  if (error == nullptr) return ncclInvalidArgument;
  if (faults_are_ordered()) {
    if (const auto ordered = suffer_call(take_faults("CommGetAsyncError", comm), [] { return false; })) return *ordered;
  }
  *error = async_state(comm);
  if (*error == ncclSuccess) complete_job(comm);
  return ncclSuccess;
}

}  // namespace fake_nccl

int fake_nccl_live_comms() { return static_cast<int>(fake_nccl::live_comms().size()); }

int fake_nccl_running() {
  int sum = 0;
  for (const auto* comm : fake_nccl::live_comms()) sum += comm->order.running();
  return sum;
}

namespace fake_nccl {
namespace {

constexpr char kIdMagic[] = "fake NCCL id ";  // NOLINT(*-avoid-c-arrays): part of a C struct

std::string host() {
  if (const char* id = std::getenv("NCCL_HOSTID"); id != nullptr) return id;
  std::array<char, 64> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Ids that this process' ranks have used: each serves one communicator.
class UsedIds {
 public:
  bool use(const std::string& room, int rank) {
    const std::lock_guard lock(mutex_);
    return used_.emplace(room, rank).second;
  }
  static UsedIds& process() {
    static auto* ids = new UsedIds;  // NOLINT(*-owning-memory): threads outlive main
    return *ids;
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<std::string, int>> used_;
};

/// init.cc:1042 and :1056
ncclResult_t compare_ranks(const Room& room, int rank) {
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = shared != nullptr && std::atoi(shared) == 1 && settings().version >= version_code(2, 30, 0);
  for (int i = 0; i < room.size(); ++i) {
    const RankPlace& place = room.place(i);
    if (place.version != room.place(rank).version) {
      note_error("Mismatched NCCL version detected : rank " + std::to_string(i) + " version " +
                 std::to_string(place.version) + " rank " + std::to_string(rank) + " version " +
                 std::to_string(room.place(rank).version));
      return ncclInvalidUsage;
    }
    for (int j = 0; j < i && !may_share; ++j) {
      if (std::strcmp(place.device, room.place(j).device) != 0) continue;
      note_error("Duplicate GPU detected : rank " + std::to_string(i) + " and rank " + std::to_string(j));
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

ncclResult_t init_rank(const char* function, ncclComm_t* made, int size, const ncclUniqueId* ids, int id_count,
                       int rank, const ncclConfig_t* config) {
  group_start();
  const auto finish = [](ncclResult_t result) {
    note_group_error(result);
    const ncclResult_t ended = group_end();
    return result == ncclSuccess ? ended : result;
  };
  if (made == nullptr || ids == nullptr || size < 1 || rank < 0 || rank >= size || id_count < 1 || id_count > size) {
    note_error("Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(size));
    return finish(ncclInvalidArgument);
  }
  ncclComm_t comm = make_comm();
  comm->rank = rank;
  comm->size = size;
  comm->place = current_place();
  const ncclResult_t parsed = parse_config(comm, config);
  if (parsed != ncclSuccess || comm->place.context == nullptr) {
    comm->alive = false;
    return finish(parsed == ncclSuccess ? ncclUnhandledCudaError : parsed);
  }
  *made = comm;
  const std::string room = room_of(ids, id_count);
  const auto work = [comm, room, faults = take_faults(function, comm)] {
    if (room.empty()) {
      note_error("Net connect to the root of the unique id : failed");
      return ncclSystemError;
    }
    if (!UsedIds::process().use(room, comm->rank)) {
      complain("rank " + std::to_string(comm->rank) + ": the unique id was used before");
      return ncclSystemError;
    }
    return meet(comm, room, nullptr, faults);
  };
  return finish(add_job({.comm = comm, .work = work}));  // a failed communicator must be aborted, too
}

}  // namespace

std::string derived_name(const std::string& text) {
  constexpr std::string_view kSecond = "second ";  // 64 bits more
  using ddp::base::Fnv1a;
  return std::to_string(Fnv1a{}.add(text).value()) + "_" + std::to_string(Fnv1a{}.add(kSecond).add(text).value());
}

bool make_unique_id(ncclUniqueId* id) {
  if (id == nullptr) return false;
  std::random_device random;
  std::memset(id, 0, sizeof *id);
  std::string text = kIdMagic;
  for (int i = 0; i < 4; ++i) text += std::to_string(random()) + ".";
  std::memcpy(id->internal, text.data(), text.size());
  return true;
}

std::string room_of(const ncclUniqueId* ids, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    if (std::memcmp(ids[i].internal, kIdMagic, sizeof kIdMagic - 1) != 0) return {};
    all.append(ids[i].internal, sizeof ids[i].internal);
  }
  return derived_name(all);
}

ncclResult_t parse_config(ncclComm_t comm, const ncclConfig_t* config) {
  ncclConfig_t& own = comm->config;
  if (config != nullptr) {
    std::memcpy(&own, config, std::min(config->size, sizeof own));
    if (own.magic != kMagic) {
      note_error("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
      return ncclInvalidArgument;
    }
    comm->name = own.commName != nullptr ? own.commName : "";
  } else {
    own.blocking = own.splitShare = own.shrinkShare = own.minCTAs = own.maxCTAs = kUndefinedInt;
  }
  if (own.version < static_cast<unsigned>(version_code(2, 27, 0))) own.shrinkShare = kUndefinedInt;
  const auto flag = [](int value) { return value == kUndefinedInt || value == 0 || value == 1; };
  if (!flag(own.blocking) || !flag(own.splitShare) || !flag(own.shrinkShare) || own.minCTAs > own.maxCTAs) {
    note_error("Invalid config attribute value");
    return ncclInvalidArgument;
  }
  if (own.blocking == kUndefinedInt) own.blocking = 1;
  if (own.splitShare == kUndefinedInt) own.splitShare = 0;
  if (own.shrinkShare == kUndefinedInt) own.shrinkShare = 0;
  // init.cc:1999
  if (const char* blocking = std::getenv("NCCL_COMM_BLOCKING"); blocking != nullptr && *blocking != '\0') {
    own.blocking = std::atoi(blocking) != 0 ? 1 : 0;
  }
  return ncclSuccess;
}

ncclResult_t meet(ncclComm_t comm, const std::string& room, ncclComm_t parent, const std::vector<Fault>& faults) {
  const Stop stop = [comm, parent] { return *comm->abort_flag || (parent != nullptr && *parent->abort_flag); };
  int version = settings().version;
  for (const Fault& fault : faults) {
    if (fault.action == Action::version) version = static_cast<int>(fault.value);
  }
  jitter();
  if (const auto ordered = suffer_call(faults, stop)) return *ordered;
  try {
    const auto shared = std::make_shared<Room>(room, comm->size);
    if (!shared->join(comm->rank, version, host() + " " + comm->place.uuid, stop)) return ncclInternalError;
    comm->room = shared;
    const ncclResult_t compared = compare_ranks(*shared, comm->rank);
    comm->initialized = compared == ncclSuccess;
    return compared;
  } catch (const std::system_error& error) {
    note_error(error.what());
    return ncclSystemError;
  }
}

FAKE_NCCL_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const auto ordered = suffer_call(take_faults("GetUniqueId", -1), [] { return false; })) return *ordered;
  return make_unique_id(id) ? ncclSuccess : ncclInvalidArgument;
}

FAKE_NCCL_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                                     ncclConfig_t* config) {
  return init_rank("CommInitRankConfig", comm, size, &id, 1, rank, config);
}

/// Every rank gives the same ids (the order counts).
FAKE_NCCL_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int id_count,
                                                       ncclUniqueId* ids, ncclConfig_t* config) {
  return init_rank("CommInitRankScalable", comm, size, ids, id_count, rank, config);
}

// Ends of communicators: finalize, destroy, abort, revoke.

namespace {

const Stop kNeverEnds = [] { return false; };

/// init.cc, commDestroySync: waits for launched work. Aborted kernels end by themselves; one that never checks the flag
/// (kernel_stuck) makes this hang.
void wait_for_device(ncclComm_t comm) {
  wait_until([&] { return comm->order.idle(); }, kNeverEnds);
}

/// init.cc, commReclaim. NCCL frees the resources of all ranks of a process with the last one; here each frees its own.
ncclResult_t reclaim(ncclComm_t comm) {
  if (comm->initialized) wait_for_device(comm);
  if (comm->room) comm->room->leave(comm->rank);
  complete_job(comm);
  forget_all(comm);
  comm->alive = false;
  comm->room.reset();
  return ncclSuccess;
}

void set_abort_flags(ncclComm_t comm, bool value) {
  {
    const std::lock_guard lock(comm->mutex);
    if (comm->child_abort_flag) *comm->child_abort_flag = value;
  }
  *comm->abort_flag = value;
}

}  // namespace

/// init.cc:2783
FAKE_NCCL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (const auto result = check_comm(comm, "ncclCommFinalize"); result != ncclSuccess) return result;
  group_start();
  if (const auto result = ensure_ready(comm); result != ncclSuccess) return end_call(comm, result);
  // Also after a revoke.
  if (comm->finalize_called.exchange(true)) return end_call(comm, ncclInvalidArgument);
  const auto work = [comm, faults = take_faults("CommFinalize", comm)] {
    if (const auto ordered = suffer_call(faults, [&] { return comm->abort_flag->load(); })) return *ordered;
    wait_for_device(comm);
    return ncclSuccess;
  };
  return end_call(comm, add_job({.comm = comm, .work = work}));
}

/// init.cc:2878. As in NCCL, the early returns leave the group open: the thread's later calls are queued forever.
FAKE_NCCL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  group_start();
  if (!comm->alive) {
    complain("comm has already been destroyed; the group that ncclCommDestroy began stays open");
    return ncclInvalidArgument;
  }
  comm->destroy_called = true;
  if (const auto result = ensure_ready(comm); result != ncclSuccess) {
    complain("ncclCommDestroy of a communicator that is not ready leaves its group open");
    return result;
  }
  const auto ordered = suffer_call(take_faults("CommDestroy", comm), kNeverEnds);
  // An internal group, which blocks because the communicator is being destroyed, even if it was made non-blocking.
  const ncclResult_t result = ordered ? *ordered : add_job({.comm = comm, .work = [comm] { return reclaim(comm); }});
  note_group_error(result);
  const ncclResult_t ended = group_end();
  return ended == ncclSuccess ? result : ended;
}

/// init.cc:3024. Ends only this rank's kernels; other ranks keep waiting.
FAKE_NCCL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (const auto result = check_comm(comm, "ncclCommAbort"); result != ncclSuccess) return result;
  group_start();
  set_abort_flags(comm, true);
  comm->destroy_called = true;
  ensure_ready(comm);  // joins init's thread, whatever its result
  const auto ordered = suffer_call(take_faults("CommAbort", comm), kNeverEnds);
  const ncclResult_t result = ordered ? *ordered : add_job({.comm = comm, .work = [comm] { return reclaim(comm); }});
  note_group_error(result);
  const ncclResult_t ended = group_end();
  return ended == ncclSuccess ? result : ended;
}

/// init.cc:2969
FAKE_NCCL_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  if (comm == nullptr) return ncclSuccess;
  if (const auto result = check_comm(comm, "ncclCommRevoke"); result != ncclSuccess) return result;
  if (flags != kRevokeDefault || comm->destroy_called || comm->finalize_called || comm->revoked) {
    return ncclInvalidArgument;
  }
  group_start();
  set_abort_flags(comm, true);
  comm->revoked = true;
  ensure_ready(comm);
  comm->finalize_called = true;
  const auto work = [comm, faults = take_faults("CommRevoke", comm)] {
    if (const auto ordered = suffer_call(faults, kNeverEnds)) return *ordered;
    wait_for_device(comm);
    set_abort_flags(comm, false);
    set_async_result(comm, ncclSuccess);
    return ncclSuccess;
  };
  return end_call(comm, add_job({.comm = comm, .work = work}));
}

}  // namespace fake_nccl
