// What the Reducer itself costs, without a framework: a step with each communication hook, with what the rank
// contributes to operations, and mark_ready. Rank 0 prints a line of JSON; times are of the slowest rank.
//
//   bench_reducer hooks ROUNDS STEPS    ResNet-50's gradients, all ready at once
//   bench_reducer average ROUNDS STEPS  the same without a hook only
//   bench_reducer marks ROUNDS STEPS    1000 gradients of 16 elements
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <ddp/ddp.hpp>

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using Shapes = std::vector<std::vector<std::int64_t>>;

/// Of ResNet-50's 161 parameters, in its order (He et al. 2015, table 1).
Shapes resnet50() {
  Shapes shapes;
  const auto convolution = [&](std::int64_t inputs, std::int64_t outputs, std::int64_t size) {
    shapes.insert(shapes.end(), {{outputs, inputs, size, size}, {outputs}, {outputs}});  // and its batch norm
  };
  convolution(3, 64, 7);
  std::int64_t inputs = 64;
  for (const auto& [width, blocks] : {std::pair{64, 3}, {128, 4}, {256, 6}, {512, 3}}) {
    for (int block = 0; block < blocks; ++block) {
      convolution(inputs, width, 1);
      convolution(width, width, 3);
      convolution(width, std::int64_t{4} * width, 1);
      if (block == 0) convolution(inputs, std::int64_t{4} * width, 1);
      inputs = std::int64_t{4} * width;
    }
  }
  shapes.insert(shapes.end(), {{1000, inputs}, {1000}});
  return shapes;
}

/// Parameters of one memory, and gradients that each step gets anew.
class Model {
 public:
  Model(const Shapes& shapes, int rank) {
    std::size_t count = 0;
    for (const auto& shape : shapes) count += elements(shape);
    values_.resize(count);
    gradients_.resize(count);
    fresh_.resize(count);
    std::minstd_rand random(static_cast<unsigned>(rank) + 1);
    std::uniform_real_distribution<float> number(-1, 1);
    for (float& each : fresh_) each = number(random);
    std::size_t at = 0;
    for (const auto& shape : shapes) {
      parameters_.push_back({.name = std::to_string(parameters_.size()),
                             .value = {values_.data() + at, ddp::DType::float32, shape},
                             .gradient = {gradients_.data() + at, ddp::DType::float32, shape}});
      at += elements(shape);
    }
  }

  const std::vector<ddp::Parameter>& parameters() const { return parameters_; }
  void renew() { std::copy(fresh_.begin(), fresh_.end(), gradients_.begin()); }

 private:
  static std::size_t elements(const std::vector<std::int64_t>& shape) {
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    return count;
  }

  std::vector<float> values_, gradients_, fresh_;
  std::vector<ddp::Parameter> parameters_;
};

struct StepTimes {
  double marking = 0, whole = 0;  // s
};

StepTimes step(ddp::Reducer& reducer, std::size_t parameters) {
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const auto start = Clock::now();
  reducer.prepare_for_backward();
  const auto prepared = Clock::now();
  for (std::size_t i = parameters; i-- > 0;) reducer.mark_ready(i);
  const auto marked = Clock::now();
  reducer.finalize();
  return {seconds(marked - prepared), seconds(Clock::now() - start)};
}

double slowest(ddp::ProcessGroup& group, double seconds) {
  std::vector<double> value{seconds};
  group.all_reduce(value, ddp::ReduceOp::max).wait();
  return value.front();
}

/// Bytes of the inputs of this process's operations with this label.
std::uint64_t contributed(const std::string& label) {
  std::uint64_t bytes = 0;
  const Json record = Json::parse(ddp::flight_recorder_json());
  for (const Json& entry : record.at("entries")) {
    const Json& own = entry.at("ddp");
    if (own.at("label") == label) bytes += own.at("input_bytes").get<std::uint64_t>();
  }
  return bytes;
}

struct Contender {
  std::string name;
  std::function<std::shared_ptr<ddp::CommHook>()> hook;
};

std::vector<Contender> contenders() {
  const auto power = [](int rank) { return ddp::PowerSgdOptions{.rank = rank, .start_iteration = 0}; };
  return {{"average", [] { return std::shared_ptr<ddp::CommHook>{}; }},
          {"float16", [] { return ddp::compress_hook(ddp::DType::float16); }},
          {"bfloat16", [] { return ddp::compress_hook(ddp::DType::bfloat16); }},
          {"PowerSGD, rank 1", [=] { return ddp::power_sgd_hook(power(1)); }},
          {"PowerSGD, rank 4", [=] { return ddp::power_sgd_hook(power(4)); }},
          {"batched PowerSGD, rank 1", [=] { return ddp::batched_power_sgd_hook(power(1)); }},
          {"8 bits per tensor", [] { return ddp::quantize_per_tensor_hook(); }},
          {"8 bits per channel", [] { return ddp::quantize_per_channel_hook(); }},
          {"top-k of 1 %", [] { return ddp::top_k_hook(0.01); }},
          {"exact average", [] { return ddp::exact_average_hook(); }},
          {"nothing", [] { return ddp::noop_hook(); }}};
}

Json measure_hooks(ddp::ProcessGroup& group, const std::vector<Contender>& hooks, int rounds, int steps) {
  Model model(resnet50(), group.rank());
  std::vector<std::pair<std::string, ddp::Reducer>> reducers;
  Json bytes;
  for (const Contender& one : hooks) {
    ddp::ReducerOptions options;
    options.comm_hook = one.hook();
    reducers.emplace_back(one.name, ddp::Reducer{model.parameters(), group, std::move(options)});
    for (int warm = 0; warm < 3; ++warm) {  // buckets are rebuilt after the first
      const ddp::FlightLabel label(warm == 2 ? one.name : "warm");
      model.renew();
      step(reducers.back().second, model.parameters().size());
    }
    bytes[one.name] = contributed(one.name);
  }
  Json found{{"bytes", bytes}, {"rounds", Json::array()}};
  for (int round = 0; round < rounds; ++round) {
    Json times;
    for (std::size_t turn = 0; turn < reducers.size(); ++turn) {
      auto& [name, reducer] = reducers[(turn + static_cast<std::size_t>(round)) % reducers.size()];
      double total = 0;
      for (int i = 0; i < steps; ++i) {
        model.renew();
        group.barrier().wait();
        total += slowest(group, step(reducer, model.parameters().size()).whole);
      }
      times[name] = total / steps;
    }
    found["rounds"].push_back(std::move(times));
  }
  return found;
}

Json measure_marks(ddp::ProcessGroup& group, int rounds, int steps) {
  Model model(Shapes(1000, {16}), group.rank());
  ddp::Reducer reducer(model.parameters(), group);
  Json found{{"rounds", Json::array()}};
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    StepTimes total;
    for (int i = 0; i < steps; ++i) {
      group.barrier().wait();
      const StepTimes one = step(reducer, model.parameters().size());
      total.marking += one.marking;
      total.whole += one.whole;
    }
    const double marking = slowest(group, total.marking / steps), whole = slowest(group, total.whole / steps);
    if (round >= 0) found["rounds"].push_back({{"marking", marking}, {"step", whole}});
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string mode = argc == 4 ? argv[1] : "";
  const int rounds = argc == 4 ? std::atoi(argv[2]) : 0, steps = argc == 4 ? std::atoi(argv[3]) : 0;
  if ((mode != "hooks" && mode != "average" && mode != "marks") || rounds < 1 || steps < 1) {
    std::fprintf(stderr, "usage: %s hooks|average|marks ROUNDS STEPS\n", argv[0]);
    return 2;
  }
  ddp::World world = ddp::World::init();
  ddp::ProcessGroup group = ddp::make_process_group(world);
  std::vector<Contender> hooks = contenders();
  if (mode == "average") hooks.resize(1);
  const Json found = mode == "marks" ? measure_marks(group, rounds, steps) : measure_hooks(group, hooks, rounds, steps);
  if (world.rank() == 0) std::printf("%s\n", found.dump().c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
  return 1;
}
