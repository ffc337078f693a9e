// What each rank says about itself before NCCL is started, and what must hold of all together. NCCL itself notices
// other versions at the end of its bootstrap, on some ranks, and two ranks on one GPU by hanging.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/message_fields.hpp"
#include "collectives/nccl/nccl_library.hpp"

namespace ddp::collectives::nccl {

/// The first NCCL that may run several ranks on one GPU, and finds them by the GPU alone.
constexpr int kSharedGpu = version_code(2, 30, 0);

struct RankReport {
  int nccl_version = 0;        ///< as NCCL codes it
  int driver_version = 0;      ///< of CUDA that the driver supports
  bool may_share = false;      ///< its NCCL may run several ranks on one GPU (NCCL_MULTI_RANK_GPU_ENABLE)
  int compute_capability = 0;  ///< of its GPU: 90 is 9.0
  std::string device;          ///< UUID
  std::string host;
  std::string host_id;  ///< NCCL_HOSTID, by which NCCL tells hosts apart; empty: not set
  std::int64_t process = 0;
  std::optional<ncclUniqueId> id{};  ///< of a rank that is a root of the bootstrap
};
constexpr auto description(const RankReport*) {
  return base::describe({"report of a rank about NCCL", 1},
                        base::fields<&RankReport::nccl_version, &RankReport::driver_version, &RankReport::may_share,
                                     &RankReport::compute_capability, &RankReport::device, &RankReport::host,
                                     &RankReport::host_id, &RankReport::process, &RankReport::id>());
}
inline void write_value(base::ByteWriter& writer, const ncclUniqueId& id) {
  writer.raw(std::as_bytes(std::span{id.internal}));
}
inline void read_value(base::ByteReader& reader, ncclUniqueId& id) {
  std::memcpy(id.internal, reader.raw(kUniqueIdBytes).data(), kUniqueIdBytes);
}

/// Ranks that make an id for a group of @p size: the first of each 128, or rank 0 alone where NCCL takes one id only.
std::vector<int> bootstrap_roots(int size, bool several);

/// Whether NCCL reduces 8-bit floating point among such ranks.
bool adds_float8(const std::vector<RankReport>& reports);

/// Throws Error: mismatch if not all ranks have one version of NCCL, conflict if two have one GPU; lists who has what.
/// Drivers may differ: that is logged by rank 0. @p reports by rank, @p rank the own one.
void check_reports(const std::vector<RankReport>& reports, const std::string& group, int rank);

}  // namespace ddp::collectives::nccl
