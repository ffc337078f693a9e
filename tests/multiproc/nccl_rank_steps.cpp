// Scenario of nccl_rank: steps of training as NCCL sees them, one of which a rank does not survive.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/ddp.hpp>

#include "device_floats.hpp"
#include "nccl_rank.hpp"

namespace ddp::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

/// In each an all_reduce, and a ring of transfers that start as one; then the group is closed.
void steps(ddp::World& world, int last) {
  auto begin = Clock::now();
  DeviceFloats sums(world.local_rank(), 1000);
  DeviceFloats mine(world.local_rank(), 100);
  DeviceFloats theirs(world.local_rank(), 100);
  try {
    {
      ddp::ProcessGroup group = ddp::make_process_group(world);
      const int right = (group.rank() + 1) % group.size();
      const int left = (group.rank() + group.size() - 1) % group.size();
      mine.fill(1);
      for (int step = 1; step <= last; ++step) {
        const ddp::FlightLabel label(fmt::format("step {}", step));
        begin = Clock::now();
        const ddp::Work summed = group.all_reduce(sums.view(), ddp::ReduceOp::sum, sums.options());
        const ddp::Work passed =
            ddp::Batch(group).send(mine.view(), right).recv(theirs.view(), left).start(mine.options());
        summed.wait();
        passed.wait();
      }
      begin = Clock::now();
    }
    say(fmt::format("CLOSED {:.3f}", seconds_since(begin)));
  } catch (const ddp::Error&) {
    say(fmt::format("WAITED {:.3f}", seconds_since(begin)));
    throw;
  }
}

}  // namespace ddp::test
