// Ways to sum a buffer over all ranks, compared by the all_reduce benchmark.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ddp/ddp.hpp>

namespace ddp::bench {

/// Collective: every rank calls the same contenders in the same order.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual std::string name() const = 0;
  /// Sums @p values over all ranks in place; returns when this rank's result is complete.
  virtual void all_reduce(std::vector<float>& values) = 0;
};

/// Through a process group: queue, worker thread, watchdog, Work::wait.
std::unique_ptr<Contender> process_group_contender(World& world);

/// The function that combines two buffers when Gloo is called directly.
enum class Combine {
  libddp,  ///< ddp::reduce_kernel, as the process group does
  gloo,    ///< gloo::sum<float>
};

/// gloo::allreduce with libddp's options on the calling thread, over its own mesh on the same interface, with a gloo
/// FileStore as rendezvous.
std::unique_ptr<Contender> direct_contender(World& world, Combine combine);

}  // namespace ddp::bench
