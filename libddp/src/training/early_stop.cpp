#include <ddp/early_stop.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

namespace ddp {

bool EarlyStop::update(ProcessGroup& group, double value) {
  const double gain = best_ ? (options_.larger_is_better ? value - *best_ : *best_ - value) : 0;
  if (!std::isnan(value) && (!best_ || gain > options_.least_gain)) {
    best_ = value;
    stale_ = 0;
  } else if (++stale_ >= options_.patience) {
    request();
  }
  return agree(group);
}

bool EarlyStop::agree(ProcessGroup& group) {
  std::vector<std::int32_t> wanted{requested_ ? 1 : 0};
  group.all_reduce(wanted, ReduceOp::max).wait();
  return wanted[0] != 0;
}

}  // namespace ddp
