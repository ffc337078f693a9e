// The ways to sum a buffer over all ranks that the all_reduce benchmark compares.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ddp/ddp.hpp>

namespace ddp::bench {

/// One of them. Collective: every rank calls the same contenders in the same order.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual std::string name() const = 0;
  /// Sums @p values over all ranks, in place, and returns when this rank's are there.
  virtual void all_reduce(std::vector<float>& values) = 0;
};

/// Through a process group: queue, worker thread, watchdog, and Work::wait.
std::unique_ptr<Contender> process_group_contender(World& world);

/// Which function combines two buffers when Gloo is driven directly.
enum class Combine {
  libddp,  ///< ddp::reduce_kernel, as the process group does
  gloo,    ///< gloo::sum<float>
};

/// gloo::allreduce on the calling thread, on a mesh of its own over the same interface, met through a gloo FileStore.
/// The options are those that libddp gives.
std::unique_ptr<Contender> direct_contender(World& world, Combine combine);

}  // namespace ddp::bench
