#include "init.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <random>
#include <system_error>

#include "base/byte_stream.hpp"
#include "cuda_side.hpp"
#include "group.hpp"

namespace fake_nccl {
namespace {

constexpr char kIdMagic[] = "fake NCCL id ";  // NOLINT(*-avoid-c-arrays): part of a C struct

std::string host() {
  if (const char* id = std::getenv("NCCL_HOSTID"); id != nullptr) return id;
  std::array<char, 64> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Ids of this process that ranks have used: each serves for one communicator.
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
  return finish(add_job({.comm = comm, .work = work}));  // a communicator that fails wants to be aborted, too
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

}  // namespace fake_nccl
