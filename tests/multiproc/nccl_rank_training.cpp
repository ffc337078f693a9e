// Scenarios of nccl_rank: gradients averaged by a Reducer, and a step of it in a CUDA graph.
#include <regex>

#include <ddp/ddp.hpp>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"
#include "device_floats.hpp"
#include "file_store.hpp"
#include "nccl_rank.hpp"

namespace ddp::test {

/// Gradients of a device in buckets, with one of the CPU between them. Nothing but the program's stream is waited for,
/// so that an order that is missing gives wrong numbers.
void train(ddp::World& world) {
  ddp::ProcessGroup group = ddp::make_process_group(world);
  const auto context = ddp::cuda::PrimaryContext::retain(world.local_rank());
  DeviceFloats first(world.local_rank(), 3000);
  DeviceFloats second(world.local_rank(), 500);
  std::vector<float> on_host(700, static_cast<float>(world.rank()));
  first.fill(static_cast<float>(world.rank()) + 1);
  second.fill(static_cast<float>(world.rank()) + 2);
  check(second.all_equal(static_cast<float>(world.rank()) + 2), "the other stream has not filled it");
  ddp::ReducerOptions options;
  options.bucket_cap_bytes = 1000;
  options.gradient_as_bucket_view = true;
  options.stream = first.stream();
  const auto allocate = [&](std::size_t bytes, ddp::Device device) -> std::shared_ptr<void> {
    if (device.type == ddp::DeviceType::cpu) return {std::aligned_alloc(64, (bytes + 63) / 64 * 64), &std::free};
    if (std::getenv("DDP_NCCL_REGISTER") != nullptr) return group.allocate(bytes);
    const auto memory = std::make_shared<ddp::cuda::DeviceMemory>(context, bytes);
    const ddp::cuda::ContextScope scope(*context);
    ddp::cuda::check(ddp::cuda::driver().memset_d8_async(memory->get(), 0, bytes, first.stream_handle()), "zeroing");
    return {memory, memory->pointer()};
  };
  const std::vector<ddp::Parameter> parameters{{.name = "first", .value = first.view()},
                                               {.name = "host", .value = on_host},
                                               {.name = "second", .value = second.view()}};
  options.allocator = allocate;
  ddp::Reducer reducer(parameters, group, options);
  check(reducer.buckets() == std::vector<std::vector<std::size_t>>{{2}, {1}, {0}}, "the buckets of the list, reversed");
  check(first.all_equal(1) && second.all_equal(2) && on_host[699] == 0, "the values are not rank 0's");
  reducer.trace(1);
  const auto mine = static_cast<float>(world.rank());
  const float mean = static_cast<float>(group.size() - 1) / 2;
  for (int step = 1; step <= 6; ++step) {
    const auto factor = static_cast<float>(step);
    reducer.prepare_for_backward();
    std::ranges::fill(std::span{static_cast<float*>(reducer.bucket_view(1).data()), 700}, mine * factor);
    reducer.mark_ready(1);
    first.fill_at(reducer.bucket_view(2), mine * factor);
    reducer.mark_ready(2, reducer.bucket_view(2));
    first.fill_at(reducer.bucket_view(0), mine * factor + 1);
    reducer.mark_ready(0);
    reducer.finalize();
    check(first.equal_at(reducer.bucket_view(2), mean * factor), "an average on the device");
    check(first.equal_at(reducer.bucket_view(0), mean * factor + 1), "another average on the device");
    check(*static_cast<float*>(reducer.bucket_view(1).data()) == mean * factor, "an average on the host");
  }
  check(reducer.ready_order() == std::vector<std::size_t>{1, 2, 0}, "the order of gradients");
  check(reducer.buckets() == std::vector<std::vector<std::size_t>>{{1}, {2}, {0}}, "the buckets follow it");
  // finalize has not waited for the device
  check(reducer.stats().communication.count() == 0 && reducer.stats().overlap.count() == 0, "unknown times are given");
  const ddp::DdpLog log = reducer.log();
  check(log.iteration == 6 && log.num_buckets_reduced == 3, "the step that was logged");
  check(log.backward_comm_time == 0 && log.backward_comm_time_start == 0 && log.backward_comm_time_end == 0 &&
            log.backward_compute_comm_overlap_time == 0 && log.avg_backward_comm_time == 0 &&
            log.hidden_communication_share == 0,
        "unknown times are logged");
  check(log.has_rebuilt_buckets && log.rebuilt_bucket_sizes == "2800, 2000, 12000", "buckets are rebuilt");
  const std::string trace = reducer.trace_json();
  const auto noted = [&](const char* what, int bucket) {
    return std::regex_search(trace, std::regex(fmt::format("\"{}\".*\"bucket\": {},", what, bucket)));
  };
  for (const int bucket : {0, 1, 2}) check(noted("waiting", bucket), "when a bucket was ready");
  check(!noted("exchange", 0) && noted("exchange", 1) && !noted("exchange", 2),
        "only the CPU's bucket is known to end");
  reducer.prepare_for_backward();
  first.fill(mine);
  for (const std::size_t index : {1, 2}) reducer.mark_ready(index);
  reducer.mark_ready(0, first.view());
  reducer.finalize();
  check(first.all_equal(mean), "the average of a gradient outside its bucket");
  group.barrier().wait();
}

/// A step of a Reducer becomes a graph, which averages what its gradients hold at each launch; by @p hook's kernels.
void capture(ddp::World& world, bool view, bool hook) {
  ddp::ProcessGroup group = ddp::make_process_group(world);
  DeviceFloats floats(world.local_rank(), 600);
  DeviceFloats gradients(world.local_rank(), 600);
  floats.fill(1);
  ddp::ReducerOptions options;
  options.gradient_as_bucket_view = view;
  options.stream = floats.stream();
  if (hook) options.comm_hook = ddp::top_k_hook(1);
  ddp::Reducer reducer(
      {{.name = "only", .value = floats.view(), .gradient = view ? ddp::TensorView{} : gradients.view()}}, group,
      options);
  const auto step = [&] {
    reducer.prepare_for_backward();
    reducer.mark_ready(0);
    reducer.finalize();
  };
  const auto mine = static_cast<float>(world.rank());
  const float mean = static_cast<float>(group.size() - 1) / 2;
  const ddp::TensorView gradient = view ? reducer.bucket_view(0) : gradients.view();
  floats.fill_at(gradient, mine);
  step();
  check(floats.equal_at(gradient, mean), "an average");
  const auto context = ddp::cuda::PrimaryContext::retain(world.local_rank());
  const ddp::cuda::ContextScope scope(*context);
  const auto& driver = ddp::cuda::driver();
  CUstream stream = floats.stream_handle();
  ddp::cuda::check(driver.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
  step();
  CUgraph graph = nullptr;
  CUgraphExec program = nullptr;
  ddp::cuda::check(driver.stream_end_capture(stream, &graph), "capturing");
  ddp::cuda::check(driver.graph_instantiate(&program, graph, 0), "instantiating");
  for (int launch = 2; launch < 5; ++launch) {
    const auto factor = static_cast<float>(launch);
    floats.fill_at(gradient, mine * factor);
    ddp::cuda::check(driver.graph_launch(program, stream), "launching");
    check(floats.equal_at(gradient, mean * factor), "an average by the graph");
  }
  driver.graph_exec_destroy(program);
  driver.graph_destroy(graph);
  floats.fill_at(gradient, mine);
  step();
  check(floats.equal_at(gradient, mean), "an average after the graph");
  group.barrier().wait();
}

/// In the capture, another stream waits for the operation, too, before and after the operation is over for the group.
void capture_aside(ddp::World& world) {
  std::optional<ddp::ProcessGroup> group = ddp::make_process_group(world);
  DeviceFloats sum(world.local_rank(), 600);
  DeviceFloats taken(world.local_rank(), 600);
  ddp::CallOptions options;
  options.stream = sum.stream();
  group->all_reduce(sum.view(), ddp::ReduceOp::sum, options).wait();
  const auto context = ddp::cuda::PrimaryContext::retain(world.local_rank());
  const ddp::cuda::ContextScope scope(*context);
  const auto& driver = ddp::cuda::driver();
  ddp::cuda::Event copied(context);
  ddp::cuda::check(driver.stream_begin_capture(sum.stream_handle(), CU_STREAM_CAPTURE_MODE_GLOBAL), "capturing");
  const ddp::Work work = group->all_reduce(sum.view(), ddp::ReduceOp::sum, options);
  check(work.done(), "it is over for the group");
  work.order(taken.stream());
  ddp::cuda::check(driver.memcpy_async(reinterpret_cast<CUdeviceptr>(taken.view().data()),
                                       reinterpret_cast<CUdeviceptr>(sum.view().data()), sum.view().size_bytes(),
                                       taken.stream_handle()),
                   "copying");
  copied.record(taken.stream_handle());
  ddp::cuda::Stream::borrow(sum.stream_handle()).wait(copied.get());
  CUgraph graph = nullptr;
  CUgraphExec program = nullptr;
  ddp::cuda::check(driver.stream_end_capture(sum.stream_handle(), &graph), "capturing");
  work.order(taken.stream());  // nothing is left to wait for, nor behind the group's end
  ddp::cuda::check(driver.graph_instantiate(&program, graph, 0), "instantiating");
  for (int launch = 1; launch < 4; ++launch) {
    sum.fill(static_cast<float>(launch * (world.rank() + 1)));
    ddp::cuda::check(driver.graph_launch(program, sum.stream_handle()), "launching");
    const auto expected = static_cast<float>(launch * group->size() * (group->size() + 1)) / 2;
    check(sum.all_equal(expected) && taken.all_equal(expected), "a copy of the sum");
  }
  driver.graph_exec_destroy(program);
  driver.graph_destroy(graph);
  group->barrier().wait();
  group.reset();
  work.order(taken.stream());
}

// Scenario of nccl_rank: steps of training as NCCL sees them, one of which a rank does not survive.

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

// Scenario of nccl_rank: the same processes in groups of other shapes, one after another, also after failed ones.

namespace {

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
