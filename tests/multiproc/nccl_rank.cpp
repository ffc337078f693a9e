// One rank of a job whose group has NCCL for CUDA tensors. Started by nccl_multiproc over the doubles of CUDA and NCCL.
#include <fmt/ranges.h>

#include <ddp/ddp.hpp>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "device_floats.hpp"
#include "file_store.hpp"
#include "nccl_rank.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using ddp::test::DeviceFloats;

using ddp::test::check;
using ddp::test::say;

template <class Call>
void must_refuse(const Call& call, const std::string& why) {
  try {
    call();
  } catch (const ddp::Error& error) {
    return check(
        error.code() == ddp::ErrorCode::invalid_argument && std::string(error.what()).find(why) != std::string::npos,
        error.what());
  }
  check(false, "it was not refused: " + why);
}

/// Tensors of both kinds of devices, orders among streams, groups of some ranks, wrong devices, a forked child.
void use_group(ddp::World& world) {
  ddp::ProcessGroup group = ddp::make_process_group(world);
  const int size = group.size();
  const float sum = static_cast<float>(size * (size + 1)) / 2;
  const float mine = static_cast<float>(group.rank()) + 1;
  DeviceFloats floats(world.local_rank(), 1000);
  for (int i = 0; i < 5; ++i) {
    floats.fill(mine);
    group.all_reduce(floats.view(), ddp::ReduceOp::sum, floats.options()).order(floats.stream());
    check(floats.all_equal(sum), "an ordered sum");
    floats.fill(mine);
    ddp::CallOptions inside = floats.options();
    inside.in_stream = true;
    const ddp::Work work = group.all_reduce(floats.view(), ddp::ReduceOp::max, inside);
    check(floats.all_equal(static_cast<float>(size)), "a maximum in the program's stream");
    work.wait();
    std::vector<float> on_host(10, mine);
    group.all_reduce(on_host).wait();
    check(on_host == std::vector<float>(10, sum), "a sum of the CPU's tensors");
  }
  std::vector<int> even;
  for (int rank = 0; rank < size; rank += 2) even.push_back(rank);
  if (auto some = group.new_group(even)) {
    floats.fill(1);
    some->all_reduce(floats.view(), ddp::ReduceOp::sum, floats.options()).wait();
    check(floats.all_equal(static_cast<float>(even.size())), "a sum of some ranks");
  }
  try {
    ddp::TensorView elsewhere(floats.view().data(), ddp::DType::float32, {1},
                              {.type = ddp::DeviceType::cuda, .index = world.local_rank() + 1});
    group.all_reduce(elsewhere).wait();
    check(false, "a tensor of another device is refused");
  } catch (const ddp::Error& error) {
    check(error.code() == ddp::ErrorCode::invalid_argument, error.what());
  }
  floats.fill(mine);
  ddp::CallOptions scaled = floats.options();
  scaled.prescale = 0.5;
  group.all_reduce(floats.view(), ddp::ReduceOp::sum, scaled).order(floats.stream());
  check(floats.all_equal(sum / 2), "a scaled sum");
  std::vector<double> on_host(4, 2);
  const ddp::TensorView complex(on_host.data(), ddp::DType::complex128, {2});
  group.all_reduce(complex, ddp::ReduceOp::sum, scaled).wait();
  check(on_host == std::vector<double>(4, size), "a scaled sum of complex numbers");
  must_refuse([&] { group.send(floats.view(), group.rank()).wait(); }, "with itself");
  must_refuse([&] { group.recv(floats.view(), group.rank()).wait(); }, "with itself");
  must_refuse([&] { group.all_reduce(complex, ddp::ReduceOp::max).wait(); }, "complex128 numbers have no max");
  must_refuse([&] { group.all_reduce(complex, ddp::ReduceOp::avg, scaled).wait(); }, "prescale is for sums");
  scaled.prescale = 0;
  must_refuse([&] { group.all_reduce(complex, ddp::ReduceOp::sum, scaled).wait(); }, "a prescale of 0");
  must_refuse([&] { group.allocate(0); }, "the size is 0");
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      group.all_reduce(floats.view()).wait();
      ::_exit(1);
    } catch (const ddp::Error& error) {
      ::_exit(error.code() == ddp::ErrorCode::unavailable ? 0 : 2);
    }
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  check(status == 0, "a forked child is refused");
  group.barrier().wait();
}

/// Rank 0 allocates before it waits for an operation that the others wait for before they allocate: many steps of it
/// are still to be taken then.
void allocate_meanwhile(ddp::World& world) {
  ddp::ProcessGroup group = ddp::make_process_group(world);
  std::vector<float> values(8'000'000, 1);
  if (group.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const ddp::Work work = group.all_reduce(values);
  if (group.rank() != 0) work.wait();
  check(group.allocate(64) != nullptr, "allocating");
  work.wait();
  check(values.back() == static_cast<float>(group.size()), "the sum");
}

/// all_reduces until one fails; then all that are under way must fail with the same error.
void loop(ddp::World& world, int seconds) {
  ddp::ProcessGroup group = ddp::make_process_group(world);
  DeviceFloats floats(world.local_rank(), 1000);
  floats.fill(1);
  group.all_reduce(floats.view(), ddp::ReduceOp::avg, floats.options()).wait();
  std::vector<std::shared_ptr<void>> memory(10);
  for (auto& each : memory) each = group.allocate(64);
  say("READY");
  const auto limit = std::chrono::seconds(seconds);
  for (;;) {
    const auto begin = Clock::now();
    std::vector<ddp::Work> works;
    for (int i = 0; i < 3; ++i) {
      ddp::CallOptions options = floats.options();
      options.deadline = ddp::Deadline::after(limit);
      if (i == 0 && !memory.empty()) {  // freed after the first, while later ones may hang
        options.keep_alive = std::move(memory.back());
        memory.pop_back();
      }
      works.push_back(group.all_reduce(floats.view(), ddp::ReduceOp::avg, options));
    }
    try {
      for (const ddp::Work& work : works) work.wait();
    } catch (const ddp::Error& error) {
      say(fmt::format("WAITED {:.3f}", std::chrono::duration<double>(Clock::now() - begin).count()));
      for (const ddp::Work& work : works) {
        while (!work.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const auto its = work.error();
        check(!its || std::string(its->what()) == error.what(), "all fail with one error");
      }
      throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

/// Those that are left of a group that has failed make another, which meets in a folder. Each keeps its device.
void survive(ddp::World& world, const std::string& folder) {
  std::vector<int> left;
  try {
    loop(world, 60);
  } catch (const ddp::Error& error) {
    for (int rank = 0; rank < world.world_size(); ++rank) {
      if (std::ranges::find(error.ranks(), rank) == error.ranks().end()) left.push_back(rank);
    }
  }
  const auto place = static_cast<int>(std::ranges::find(left, world.rank()) - left.begin());
  const auto size = static_cast<int>(left.size());
  check(size == world.world_size() - 1, "one is lost");
  const ddp::StoreGroupOptions options{
      .name = "survivors", .global_ranks = left, .backend = "nccl", .device = world.local_rank()};
  ddp::ProcessGroup group =
      ddp::make_process_group(std::make_unique<ddp::test::FileStore>(folder, place, size), options);
  DeviceFloats floats(world.local_rank(), 1000);
  floats.fill(static_cast<float>(place));
  group.all_reduce(floats.view(), ddp::ReduceOp::sum, floats.options()).order(floats.stream());
  check(floats.all_equal(static_cast<float>(size * (size - 1)) / 2), "a sum of the survivors");
  group.barrier().wait();
}

/// Two communicators, whose operations ranks start in different orders. Says which have ended, and how they failed.
void cross(ddp::World& world) {
  ddp::ProcessGroup first = ddp::make_process_group(world);
  std::vector<int> all(static_cast<std::size_t>(first.size()));
  std::iota(all.begin(), all.end(), 0);
  std::optional<ddp::ProcessGroup> second = first.new_group(all);
  DeviceFloats mine(world.local_rank(), 10);
  DeviceFloats others(world.local_rank(), 20);
  first.all_reduce(mine.view(), ddp::ReduceOp::sum, mine.options()).wait();
  second->all_reduce(others.view(), ddp::ReduceOp::sum, others.options()).wait();
  first.barrier().wait();
  std::vector<std::pair<const char*, ddp::Work>> works;
  const auto start = [&](const char* name, ddp::ProcessGroup& group, DeviceFloats& floats) {
    ddp::CallOptions options = floats.options();
    options.deadline = ddp::Deadline::after(std::chrono::seconds(6));
    works.emplace_back(name, group.all_reduce(floats.view(), ddp::ReduceOp::sum, options));
    // it is on the device, or behind what is
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  };
  const bool forward = world.rank() % 2 == 0;
  if (forward) start("first", first, mine);
  start("second", *second, others);
  if (!forward) start("first", first, mine);
  for (const auto& [name, work] : works) {
    try {
      work.wait();
    } catch (const ddp::Error& error) {
      say(fmt::format("ERROR code={} {}", to_string(error.code()), error.what()));
    }
    check(work.done(), "it has ended");
    say(fmt::format("ENDED {}", name));
  }
}

void run(const std::string& scenario, const std::string& argument) {
  ddp::World world = ddp::World::init();
  ::setenv("FAKE_CUDA_RANK", std::to_string(world.rank()).c_str(), 1);  // for faults of one rank
  if (scenario == "survive") return survive(world, argument);
  if (scenario == "reshape") return ddp::test::reshape(world, argument);
  if (scenario == "use") return use_group(world);
  if (scenario == "allocate-meanwhile") return allocate_meanwhile(world);
  if (scenario == "train") return ddp::test::train(world);
  if (scenario == "reduce") return ddp::test::reduce(world, argument);
  if (scenario == "reduce_otherwise") return ddp::test::reduce_otherwise(world);
  if (scenario == "cross") return cross(world);
  if (scenario == "capture_aside") return ddp::test::capture_aside(world);
  if (scenario == "capture") return ddp::test::capture(world, argument == "view", argument == "hook");
  if (scenario == "steps") return ddp::test::steps(world, std::stoi(argument));
  if (scenario == "loop") return loop(world, std::stoi(argument));
  if (scenario == "old" && world.rank() == 1) ::setenv("FAKE_NCCL_VERSION", "21805", 1);
  if (scenario == "old") return use_group(world);
  if (scenario == "cpu") {
    ddp::ProcessGroup group = ddp::make_process_group(world);
    std::vector<float> on_host(10, 1);
    group.all_reduce(on_host).wait();
    float nowhere = 0;
    group.all_reduce({&nowhere, ddp::DType::float32, {1}, {.type = ddp::DeviceType::cuda, .index = 0}}).wait();
  }
}

}  // namespace

int main(int count, char** arguments) {
  try {
    run(count > 1 ? arguments[1] : "", count > 2 ? arguments[2] : "");
  } catch (const ddp::Error& error) {
    say(fmt::format("ERROR code={} ranks=[{}] {}", to_string(error.code()), fmt::join(error.ranks(), ","),
                    error.what()));
    return 3;
  } catch (const std::exception& error) {
    say(error.what());
    return 1;
  }
  say("DONE");
}
