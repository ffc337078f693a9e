#include "kvs/store_contract.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace ddp::kvs {

void check_rank(int rank, int world_size) {
  if (rank >= 0 && rank < world_size) return;
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "reading a value from the key-value store",
               .cause = fmt::format("there is no rank {} in a world of {}", rank, world_size)}};
}

void check_usable(bool usable, const std::string& attempted) {
  if (usable) return;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = attempted,
               .cause = "the key-value store was left, or an earlier fence of it failed",
               .hint = "launchers cannot take a failed fence back; end the job and start it again"}};
}

Error key_not_found(const std::string& attempted, std::string native) {
  return Error{{.code = ErrorCode::not_found,
                .attempted = attempted,
                .cause = "the rank has put no such key before the last fence",
                .native = std::move(native)}};
}

Deadline before_reserve(Deadline deadline) {
  const auto reserve = std::min<std::chrono::milliseconds>(deadline.remaining() / 4, std::chrono::seconds(2));
  return Deadline{deadline.when() - reserve};
}

Error fence_timeout(const std::string& attempted, std::vector<int> absent, int world_size) {
  std::string cause = absent.empty()
                          ? std::string("all ranks arrived, but the launcher did not complete it in time")
                          : fmt::format("{} of {} ranks did not arrive before the deadline", absent.size(), world_size);
  return Error{{.code = ErrorCode::timeout,
                .attempted = attempted,
                .cause = std::move(cause),
                .ranks = std::move(absent),
                .hint = "see what these ranks print and where they are; DDP_INIT_TIMEOUT gives them more seconds"}};
}

}  // namespace ddp::kvs
