#include "reducer/bucket_plan.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <ddp/error.hpp>

namespace ddp::reducer {
namespace {

struct OpenBucket {
  std::vector<std::size_t> indices;
  std::size_t size_bytes = 0;
  std::size_t limit = 0;       ///< position in the list of limits
  std::size_t first_seen = 0;  ///< when its kind first came
};

}  // namespace

BucketPlan assign_buckets(std::span<const TensorInfo> tensors, std::span<const std::size_t> size_limits,
                          std::span<const std::size_t> order) {
  if (size_limits.empty() || (!order.empty() && order.size() != tensors.size())) {
    throw Error{
        {.code = ErrorCode::invalid_argument,
         .attempted = "assigning parameters to buckets",
         .cause = size_limits.empty() ? "no size limit is given" : "the order names another number of tensors"}};
  }
  BucketPlan closed;
  std::map<std::pair<DType, Device>, OpenBucket> open;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    const auto [entry, is_new] = open.try_emplace({tensor.dtype, tensor.device});
    OpenBucket& bucket = entry->second;
    if (is_new) bucket.first_seen = i;
    bucket.indices.push_back(order.empty() ? i : order[i]);
    bucket.size_bytes += tensor.size_bytes;
    if (bucket.size_bytes >= size_limits[bucket.limit]) {
      closed.push_back(std::exchange(bucket.indices, {}));
      bucket.size_bytes = 0;
      if (bucket.limit + 1 < size_limits.size()) ++bucket.limit;
    }
  }
  std::vector<OpenBucket> left;
  for (auto& entry : open) {
    if (!entry.second.indices.empty()) left.push_back(std::move(entry.second));
  }
  std::sort(left.begin(), left.end(),
            [](const OpenBucket& a, const OpenBucket& b) { return a.first_seen < b.first_seen; });
  for (OpenBucket& bucket : left) closed.push_back(std::move(bucket.indices));
  if (order.empty()) {
    std::sort(closed.begin(), closed.end(), [](const auto& a, const auto& b) {
      return *std::min_element(a.begin(), a.end()) < *std::min_element(b.begin(), b.end());
    });
  }
  return closed;
}

}  // namespace ddp::reducer
