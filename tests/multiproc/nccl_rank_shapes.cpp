// Scenario of nccl_rank: the same processes in groups of other shapes, one after another, also after failed ones.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <ddp/ddp.hpp>

#include "device_floats.hpp"
#include "file_store.hpp"
#include "nccl_rank.hpp"

namespace ddp::test {
namespace {

using std::chrono::milliseconds;

/// What becomes of a group.
enum class Fate {
  closed,     ///< in peace
  timed_out,  ///< its first rank stays away from an operation
  aborted,    ///< so, and the others close it meanwhile
};

struct Shape {
  std::vector<int> members;  ///< ranks in the world, by their ranks in the group
  Fate fate = Fate::closed;
  bool last_is_late = false;
};

/// A sum, and a message from the first to the second.
void use(ddp::ProcessGroup& group, DeviceFloats& floats, const std::string& name) {
  const int place = group.rank();
  const int size = group.size();
  floats.fill(static_cast<float>(place + 1));
  group.all_reduce(floats.view(), ddp::ReduceOp::sum, floats.options()).order(floats.stream());
  check(floats.all_equal(static_cast<float>(size * (size + 1)) / 2), name + ": a sum");
  if (size > 1 && place < 2) {
    floats.fill(static_cast<float>(place + 10));
    const ddp::Work work = place == 0 ? group.send(floats.view(), 1, 0, floats.options())
                                      : group.recv(floats.view(), 0, 0, floats.options());
    work.order(floats.stream());
    check(floats.all_equal(10), name + ": a message");
  }
  group.barrier().wait();
}

/// The first rank's program does something else until the others have given up.
void fail(ddp::ProcessGroup& group, DeviceFloats& floats, Fate fate) {
  if (group.rank() == 0) return std::this_thread::sleep_for(milliseconds(1500));
  ddp::CallOptions options = floats.options();
  options.deadline = ddp::Deadline::after(milliseconds(fate == Fate::aborted ? 60'000 : 500));
  const ddp::Work work = group.all_reduce(floats.view(), ddp::ReduceOp::sum, options);
  if (fate == Fate::aborted) return std::this_thread::sleep_for(milliseconds(200));  // it is on the device
  try {
    work.wait();
    check(false, "an operation without its first rank ended in peace");
  } catch (const ddp::Error& error) {
    check(error.code() == ddp::ErrorCode::timeout, error.what());
  }
}

}  // namespace

void reshape(ddp::World& world, const std::string& folder) {
  const std::vector<Shape> shapes{{.members = {0, 1, 2, 3}},
                                  {.members = {0, 1, 2, 3}},  // the same again
                                  {.members = {0, 1, 2}},
                                  {.members = {0, 1, 2, 3}, .last_is_late = true},
                                  {.members = {0}},
                                  {.members = {1}},
                                  {.members = {2}},
                                  {.members = {3}},
                                  {.members = {0, 1, 2, 3}, .fate = Fate::timed_out},
                                  {.members = {1, 3}},
                                  {.members = {0, 2}},
                                  {.members = {3, 2, 1, 0}, .fate = Fate::aborted},
                                  {.members = {0, 1, 3}},
                                  {.members = {3, 2, 1, 0}}};
  DeviceFloats floats(world.local_rank(), 100);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Shape& shape = shapes[i];
    const std::vector<int>& members = shape.members;
    const auto place = static_cast<int>(std::ranges::find(members, world.rank()) - members.begin());
    const auto size = static_cast<int>(members.size());
    if (place == size) continue;
    if (shape.last_is_late && place == size - 1) std::this_thread::sleep_for(milliseconds(1500));
    const std::string name = fmt::format("shape {}", i);
    std::filesystem::create_directories(folder + "/" + name);
    const ddp::StoreGroupOptions options{
        .name = name, .global_ranks = members, .backend = "nccl", .device = world.local_rank()};
    ddp::ProcessGroup group = ddp::make_process_group(
        std::make_unique<ddp::test::FileStore>(std::filesystem::path(folder) / name, place, size), options);
    use(group, floats, name);
    if (shape.fate != Fate::closed) fail(group, floats, shape.fate);
  }
}

}  // namespace ddp::test
