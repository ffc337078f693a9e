// What a Reducer notes of itself, its steps and its buckets.
#include <ddp/ddp_log.hpp>

#include "flight/flight_view.hpp"
#include "unit/reducer/reducer_fixture.hpp"

namespace ddp {
namespace {

class DdpLogTest : public ReducerTest {
 protected:
  Reducer make_logged(ReducerOptions options) {
    options.bucket_caps_bytes = {40, 80};
    return Reducer(parameters(), group_, std::move(options));
  }
};

TEST_F(DdpLogTest, HasPyTorchsFields) {
  DdpLog log;
  log.world_size = 4;
  log.module_name = "a \"net\"\n\\";
  log.static_graph = true;
  log.nccl_debug = "INFO";
  log.error = "lost";
  log.has_error = true;
  log.hidden_communication_share = 0.25;
  EXPECT_EQ(
      to_json(log),
      R"({"world_size": 4, "rank": 0, "module_name": "a \"net\"\u000a\\", "iteration": 0, )"
      R"("is_multi_device_module": 0, "num_parameter_tensors": 0, "total_parameter_size_bytes": 0, "dtypes": "", )"
      R"("bucket_sizes": "", "device_ids": "", "output_device": -1, "broadcast_buffers": 0, "has_sync_bn": 0, )"
      R"("bucket_cap_bytes": 0, "find_unused_parameters": 0, "gradient_as_bucket_view": 0, "backend_name": "", )"
      R"("static_graph": 1, "master_addr": "", "master_port": "", "torch_distributed_debug": "", )"
      R"("cuda_visible_devices": "", "nccl_debug": "INFO", "unused_parameter_size": 0, "num_buckets_reduced": 0, )"
      R"("has_rebuilt_buckets": 0, )"
      R"("rebuilt_bucket_sizes": "", "rebuilt_per_bucket_param_indices": "", )"
      R"("prev_iteration_grad_ready_order_indices": "", "forward_compute_time": 0, "backward_compute_time": 0, )"
      R"("backward_comm_time": 0, "backward_compute_comm_overlap_time": 0, "avg_forward_compute_time": 0, )"
      R"("avg_backward_compute_time": 0, "avg_backward_comm_time": 0, )"
      R"("avg_backward_compute_comm_overlap_time": 0, "forward_compute_time_start": 0, )"
      R"("backward_compute_time_start": 0, "backward_comm_time_start": 0, "backward_compute_time_end": 0, )"
      R"("backward_comm_time_end": 0, "comm_hook": "", "join_uneven_inputs": 0, "can_set_static_graph": 0, )"
      R"("has_error": 1, "error": "lost", "hidden_communication_share": 0.2500, "straggler_rank": -1, )"
      R"("straggler_delay": 0})");
  log.module_name = "net";
  log.iteration = 20;
  log.backward_comm_time = 1'500'000;
  log.bucket_sizes = "40, 80";
  log.backend_name = "host";
  log.straggler_rank = 3;
  log.straggler_delay = 2'000'000;
  EXPECT_EQ(summary(log),
            "net: step 20, rank 0 of 4: forward 0.000 ms, backward 0.000 ms, communication 1.500 ms, 25 % hidden; "
            "buckets of 40, 80 bytes over host; rank 3 came last, 2.000 ms after another; last error: lost");
}

TEST_F(DdpLogTest, TellsWhatItIsAndHowASampledStepWent) {
  Reducer reducer = make_logged({.comm_hook = all_reduce_hook(), .log = {.sample_rate = 15, .module_name = "net"}});
  DdpLog log = reducer.log();
  EXPECT_EQ(log.iteration, 0);
  EXPECT_EQ(log.world_size, 2);
  EXPECT_EQ(log.num_parameter_tensors, 4);
  EXPECT_EQ(log.total_parameter_size_bytes, 160);
  EXPECT_EQ(log.dtypes, "float32");
  EXPECT_EQ(log.bucket_sizes, "40, 80, 40");
  EXPECT_EQ(log.bucket_cap_bytes, 80);
  EXPECT_EQ(log.backend_name, "fake");
  EXPECT_EQ(log.comm_hook, "all_reduce");
  EXPECT_TRUE(log.gloo_socket_ifname);
  EXPECT_FALSE(log.nccl_debug || log.static_graph || log.error || log.has_rebuilt_buckets);
  for (int iteration = 1; iteration <= 31; ++iteration) {
    reducer.start_forward();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    step(reducer, {0, 2, 1, 3});
    log = reducer.log();
    EXPECT_EQ(log.iteration, iteration <= 10 ? iteration : iteration / 15 == 0 ? 10 : iteration / 15 * 15);
    EXPECT_EQ(log.num_buckets_reduced, 3);
    EXPECT_EQ(log.has_rebuilt_buckets, iteration > 1);
    EXPECT_EQ(log.prev_iteration_grad_ready_order_indices, "0, 2, 1, 3");
    EXPECT_GE(log.forward_compute_time, 50'000);
    EXPECT_EQ(log.forward_compute_time, log.backward_compute_time_start - log.forward_compute_time_start);
    EXPECT_EQ(log.backward_compute_time, log.backward_compute_time_end - log.backward_compute_time_start);
    EXPECT_EQ(log.backward_comm_time, log.backward_comm_time_end - log.backward_comm_time_start);
    EXPECT_GT(log.backward_comm_time, 0);
    EXPECT_LE(log.backward_compute_comm_overlap_time, log.backward_comm_time);
    EXPECT_LE(log.backward_compute_comm_overlap_time, log.backward_compute_time);
    EXPECT_LE(log.hidden_communication_share, 1);
    EXPECT_GT(log.avg_forward_compute_time, 0);
  }
  EXPECT_EQ(log.rebuilt_bucket_sizes, "40, 80, 40");
  EXPECT_EQ(log.rebuilt_per_bucket_param_indices, "0, 2 1, 3");
  EXPECT_TRUE(log.can_set_static_graph);
  EXPECT_EQ(log.straggler_rank, -1);
  EXPECT_TRUE(error_of([&] { reducer.mark_ready(9); }));
  EXPECT_THAT(reducer.log().error.value_or(""), HasSubstr("no parameter 9"));
  EXPECT_TRUE(error_of([&] { reducer.place_gradient(8, TensorView{}); }));
  EXPECT_THAT(reducer.log().error.value_or(""), HasSubstr("no parameter 8"));
  EXPECT_TRUE(error_of([&] { reducer.broadcast_buffers(std::array{TensorView{values_[0]}}, 7); }));
  EXPECT_THAT(reducer.log().error.value_or(""), HasSubstr("rank 7"));
  EXPECT_TRUE(error_of([&] { make_logged({.log = {.sample_rate = 0}}); }));
}

TEST_F(DdpLogTest, TellsWhatWasUnusedAndWhoWasLast) {
  control_->effect = [](const ddp::Operation& operation) {
    twin(operation);
    if (operation.sequence == 1) return;  // the hash of the parameters
    if (operation.kind == OperationKind::all_gather && operation.dtype == DType::int64 && operation.count == 1) {
      auto* const waited = static_cast<std::int64_t*>(operation.output.data());
      waited[1] = waited[0] + 5;  // the other rank has waited for this one
    }
  };
  const auto before = flight::view_flight("/proc", ::getpid());
  Reducer reducer = make_logged({.find_unused_parameters = true, .log = {.find_straggler = true}});
  step(reducer, {0, 1, 2});
  EXPECT_EQ(reducer.log().unused_parameter_size, 40);
  EXPECT_TRUE(reducer.log().can_set_static_graph);
  EXPECT_EQ(reducer.log().straggler_rank, 0);
  EXPECT_EQ(reducer.log().straggler_delay, 5);
  const auto outside = flight::view_flight("/proc", ::getpid());
  ASSERT_TRUE(outside && outside->sums);
  EXPECT_EQ(outside->sums->steps - (before && before->sums ? before->sums->steps : 0), 1U);
  EXPECT_EQ(outside->sums->straggler_rank, 0);
  EXPECT_EQ(outside->sums->straggler_delay_s, 5e-9);
  EXPECT_GT(outside->sums->last_step_s, 0);
  EXPECT_GT(outside->sums->operation_bytes, 0U);
  step(reducer, {0, 1});
  EXPECT_EQ(reducer.log().unused_parameter_size, 80);
  EXPECT_FALSE(reducer.log().can_set_static_graph);
  control_->effect = [](const ddp::Operation& operation) {
    twin(operation);
    if (operation.kind == OperationKind::all_gather && operation.dtype == DType::int64 && operation.count == 1) {
      static_cast<std::int64_t*>(operation.output.data())[1] = -1;  // the other rank has run out of inputs
    }
  };
  step(reducer, {0, 1});
  EXPECT_EQ(reducer.log().straggler_rank, 0);
  EXPECT_EQ(reducer.log().straggler_delay, 0);
}

TEST_F(DdpLogTest, NobodyIsAStragglerOnADevice) {
  ProcessGroup alone{GroupEngine::make(
      collectives::GroupMembers{.name = "alone", .rank = 0, .global_ranks = {0}, .endpoints = {{}}, .channel = nullptr},
      test::fake_backends(control_), collectives::ConnectOptions{}, std::chrono::seconds(60))};
  alignas(64) std::array<std::byte, 64> memory{};
  const Device device{.type = DeviceType::cuda, .index = 0};
  ReducerOptions options{
      .broadcast_parameters = false, .gradient_as_bucket_view = true, .log = {.find_straggler = true}};
  options.allocator = [&](std::size_t, Device) {
    return std::shared_ptr<void>(std::shared_ptr<void>{}, memory.data());
  };
  Reducer reducer({{.name = "weight", .value = {memory.data(), DType::float32, {10}, device}}}, alone, options);
  step(reducer, {0});
  EXPECT_EQ(reducer.log().iteration, 1);
  EXPECT_EQ(reducer.log().straggler_rank, -1) << "finalize has not waited for the buckets";
}

TEST_F(DdpLogTest, TracesTheBucketsOfSomeSteps) {
  Reducer reducer = make_logged({.rebuild_buckets = false});
  EXPECT_THAT(reducer.trace_json(), HasSubstr("\"traceEvents\": ["));
  step(reducer);
  reducer.trace(2);
  reducer.start_forward();
  for (int i = 0; i < 3; ++i) step(reducer, {0, 1, 2, 3});
  const std::string trace = reducer.trace_json();
  EXPECT_THAT(trace, StartsWith("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{\"name\": \"process_name\", "
                                "\"ph\": \"M\", \"pid\": 0, \"args\": {\"name\": \"rank 0\"}},\n"
                                "{\"name\": \"step\", \"cat\": \"step\", \"ph\": \"X\", \"pid\": 0, \"tid\": 0, "
                                "\"ts\": "));
  const auto count = [&](const std::string& what) {
    std::size_t found = 0;
    for (auto place = trace.find(what); place != std::string::npos; place = trace.find(what, place + 1)) ++found;
    return found;
  };
  for (const char* name : {"gradients", "waiting", "exchange"}) {
    EXPECT_EQ(count(std::string("{\"name\": \"") + name + '"'), 6U) << "two steps of three buckets";
  }
  EXPECT_EQ(count("\"step\": 2"), 9U + 3U) << "the step and its passes, too";
  EXPECT_EQ(count("\"step\": 3"), 9U + 2U) << "nobody told of a forward pass";
  EXPECT_EQ(count("\"bucket\": 1, \"parameters\": 2"), 6U);
  EXPECT_EQ(count("\"dur\": -"), 0U);
  EXPECT_EQ(std::ranges::count(trace, '{'), std::ranges::count(trace, '}'));
  reducer.prepare_for_backward();
  EXPECT_TRUE(error_of([&] { reducer.trace(1); }));
}

}  // namespace
}  // namespace ddp
