// Proves that training on shards is training: after every step, the replica that W ranks trained together must be the
// one that a single process trains on whole batches. Start it as every rank of a job, with any launcher.
#include <CLI/CLI.hpp>
#include <ddp/ddp.hpp>

#include "digits/digits.hpp"

namespace ddp::sharded_training {
namespace {

constexpr int kUsageExit = 2;
constexpr int kLargestCount = 1'000'000'000;
constexpr int kMostSteps = 100;         // as far as kTolerance has been measured
constexpr double kLearningRate = 0.01;  // small enough that even batches of one sample do not magnify rounding errors
constexpr double kMomentum = 0.9;
constexpr std::uint64_t kSeed = 1;
constexpr std::size_t kWidths[] = {digits::kPixels, 128, 64, digits::kClasses};

/// What may differ, relative to the largest element of a tensor. Both sides compute each sample in the same way and
/// then add the same numbers, but in another order: in one process sample by sample, in a job each rank its own and
/// then the ranks' sums. A sum of n terms, n = batch size, has a rounding error of about sqrt(n) * epsilon times the
/// terms' magnitude, with epsilon = 1.2e-7 for float32 and 2.2e-16 for float64; terms that cancel magnify it relative
/// to the sum, and each step inherits the differences of those before it. Measured with 2 to 12 ranks and batches of 1
/// to 401 samples: in 12 steps 9e-7 (float32) and 2e-15 (float64) at most, in 100 steps 4e-6 and 6e-15. Mistakes in
/// averaging, broadcasting or sharding show as 1e-2 and more as soon as they matter.
template <class Scalar>
constexpr double kTolerance = sizeof(Scalar) == sizeof(float) ? 1e-5 : 1e-12;

enum class Break { nothing, no_average, skip_parameter_broadcast, wrong_shard, local_mean };
const std::map<std::string, Break> kBreaks{{"no-average", Break::no_average},
                                           {"skip-parameter-broadcast", Break::skip_parameter_broadcast},
                                           {"wrong-shard", Break::wrong_shard},
                                           {"local-mean", Break::local_mean}};

struct Options {
  int steps = 12;
  std::size_t global_batch = 50;
  // 8 batches of 50 and one of a single sample, which leaves all ranks but one with nothing to do.
  std::size_t samples = 401;
  std::size_t bucket_cap_bytes = 1024;
  bool float64 = false;
  Break broken = Break::nothing;
  std::filesystem::path data;
};

std::variant<Options, int> parse_options(int argc, char** argv) {
  Options options;
  options.data = digits::default_file();
  std::string broken;
  std::string dtype = "float32";
  CLI::App app{"Checks that training on shards equals training on whole batches, step by step."};
  const auto count = CLI::Range(1, kLargestCount);
  app.add_option("--steps", options.steps, "Training steps; the samples start over when they are used up")
      ->check(CLI::Range(1, kMostSteps))
      ->capture_default_str();
  app.add_option("--global-batch", options.global_batch, "Samples per step, over all ranks together")
      ->check(count)
      ->capture_default_str();
  app.add_option("--samples", options.samples, "Samples to train on")->check(count)->capture_default_str();
  app.add_option("--bucket-cap-bytes", options.bucket_cap_bytes, "Gradients are sent in buckets of about this size")
      ->check(count)
      ->capture_default_str();
  app.add_option("--dtype", dtype, "Of parameters and gradients")
      ->check(CLI::IsMember({"float32", "float64"}))
      ->capture_default_str();
  app.add_option("--break", broken, "A mistake to make, to show that it is found")->check(CLI::IsMember(kBreaks));
  app.add_option("--data", options.data, "CSV file with the digits")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    fmt::print(stderr, "sharded_training: {}\n", error.what());
    return kUsageExit;
  }
  options.float64 = dtype == "float64";
  if (!broken.empty()) options.broken = kBreaks.at(broken);
  return options;
}

/// The element in which two replicas differ most.
struct ReplicaDifference {
  /// |replica - reference| over the largest magnitude in the reference's tensor: elements near 0 are sums of larger
  /// terms and carry their rounding errors. 0 if all is equal bit by bit, infinity where one is not a number.
  double relative = 0;
  std::string where;  ///< "gradient of layer2.weight[17]"; empty while relative is 0
  double replica = 0;
  double reference = 0;
};

template <class Scalar>
void compare_tensors(const std::string& name, const std::vector<Scalar>& replica, const std::vector<Scalar>& reference,
                     ReplicaDifference& largest) {
  double magnitude = 0;
  for (const Scalar value : reference) magnitude = std::max(magnitude, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const auto [mine, expected] = std::pair{static_cast<double>(replica[i]), static_cast<double>(reference[i])};
    if (mine == expected) continue;
    // Also where the reference is all 0 (x / 0) and where something is not a number (every comparison is false).
    double relative = std::abs(mine - expected) / magnitude;
    if (std::isnan(relative)) relative = std::numeric_limits<double>::infinity();
    if (relative > largest.relative) {
      largest = {.relative = relative, .where = fmt::format("{}[{}]", name, i), .replica = mine, .reference = expected};
    }
  }
}

/// Compares every parameter, and every gradient if @p with_gradients. The networks must have the same shape.
template <class Scalar>
ReplicaDifference largest_difference(const digits::Network<Scalar>& replica, const digits::Network<Scalar>& reference,
                                     bool with_gradients) {
  ReplicaDifference largest;
  for (std::size_t p = 0; p < reference.parameters().size(); ++p) {
    const auto& mine = replica.parameters()[p];
    const auto& expected = reference.parameters()[p];
    compare_tensors(expected.name, mine.value, expected.value, largest);
    if (with_gradients) compare_tensors("gradient of " + expected.name, mine.gradient, expected.gradient, largest);
  }
  return largest;
}

/// The replica that is trained with the other ranks, and the reference that this process trains alone.
template <class Scalar>
class Proof {
 public:
  Proof(const Options& options, World& world)
      : options_(options),
        world_(world),
        group_(make_process_group(world)),
        dataset_(digits::load(options.data)),
        // Each rank draws other weights, so that only a broadcast from rank 0 can make them those of the reference.
        replica_(kWidths, kSeed + static_cast<std::uint64_t>(world.rank())),
        reference_(kWidths, kSeed),
        reducer_(digits::reducer_parameters(replica_), group_,
                 {.bucket_cap_bytes = options.bucket_cap_bytes,
                  .first_bucket_bytes = options.bucket_cap_bytes,
                  .rebuild_buckets = true,
                  .broadcast_parameters = options.broken != Break::skip_parameter_broadcast}) {
    if (options.samples > dataset_.size()) {
      throw Error{{.code = ErrorCode::invalid_argument,
                   .attempted = fmt::format("taking {} samples", options.samples),
                   .cause = fmt::format("{} has {}", options.data.string(), dataset_.size()),
                   .hint = "use a smaller --samples"}};
    }
    if (options.broken != Break::nothing && world.world_size() == 1) {
      throw Error{{.code = ErrorCode::invalid_argument,
                   .attempted = "making a mistake that other ranks could notice",
                   .cause = "there is only one rank",
                   .hint = "start at least two ranks with --break"}};
    }
  }

  /// Whether replica and reference were equal, on all ranks, before the first step and after every step.
  bool run() {
    if (!equal_everywhere(0)) return false;
    int step = 0;
    for (std::uint64_t epoch = 0; step < options_.steps; ++epoch) {
      const auto order = digits::shuffled_order(options_.samples, kSeed, epoch);
      for (const auto batch : digits::global_batches(order, options_.global_batch)) {
        if (step == options_.steps) break;
        ++step;
        step_replica(batch);
        step_reference(batch);
        if (!equal_everywhere(step)) return false;
      }
    }
    return true;
  }

  void report() const {
    fmt::print(
        "sharded training equals the whole batch: W={} steps={} max relative difference={:.2e} "
        "(tolerance {:.0e}, {}, {} buckets)\n",
        world_.world_size(), options_.steps, largest_seen_, kTolerance<Scalar>, to_string(DTypeOf<Scalar>::value),
        reducer_.buckets().size());
    std::fflush(stdout);
  }

 private:
  void step_replica(std::span<const std::size_t> batch) {
    const int rank = options_.broken == Break::wrong_shard ? 0 : world_.rank();
    const auto mine = digits::shard_of(batch, rank, world_.world_size());
    Scalar scale = static_cast<Scalar>(world_.world_size()) / static_cast<Scalar>(batch.size());
    if (options_.broken == Break::local_mean) scale = mine.empty() ? Scalar{0} : 1 / static_cast<Scalar>(mine.size());

    replica_.forward(digits::make_batch<Scalar>(dataset_, mine));
    if (options_.broken == Break::no_average) {
      replica_.backward(scale, [](std::size_t) {});
    } else {
      reducer_.prepare_for_backward();
      replica_.backward(scale, [this](std::size_t parameter) { reducer_.mark_ready(parameter); });
      reducer_.finalize();
    }
    replica_.update(Scalar{kLearningRate}, Scalar{kMomentum});
  }

  void step_reference(std::span<const std::size_t> batch) {
    reference_.forward(digits::make_batch<Scalar>(dataset_, batch));
    reference_.backward(1 / static_cast<Scalar>(batch.size()), [](std::size_t) {});
    reference_.update(Scalar{kLearningRate}, Scalar{kMomentum});
  }

  /// Compares on this rank, says what differs, and learns the verdict of the others, so that all stop at the same step.
  bool equal_everywhere(int step) {
    const ReplicaDifference difference = largest_difference(replica_, reference_, step > 0);
    const bool equal_here = difference.relative <= kTolerance<Scalar>;
    if (!equal_here) {
      fmt::print(stderr,
                 "sharded_training: rank {}: step {}: {} is {:.9g} but {:.9g} in the reference: "
                 "relative difference {:.2e}, tolerance {:.0e}\n",
                 world_.rank(), step, difference.where, difference.replica, difference.reference, difference.relative,
                 kTolerance<Scalar>);
    }
    // What this rank found counts whatever comes out of the library under test; the maximum can only add to it.
    double largest = std::min(difference.relative, std::numeric_limits<double>::max());
    group_.all_reduce(std::span{&largest, 1}, ReduceOp::max).wait();
    largest_seen_ = std::max({largest_seen_, largest, difference.relative});
    const bool equal_elsewhere = largest <= kTolerance<Scalar>;
    if (equal_here && !equal_elsewhere) {
      fmt::print(stderr,
                 "sharded_training: rank {}: step {}: equal here, but another rank found a difference of {:.2e}\n",
                 world_.rank(), step, largest);
    }
    return equal_here && equal_elsewhere;
  }

  const Options& options_;
  World& world_;
  ProcessGroup group_;
  digits::Dataset dataset_;
  digits::Network<Scalar> replica_;
  digits::Network<Scalar> reference_;
  Reducer reducer_;
  double largest_seen_ = 0;
};

template <class Scalar>
int prove(const Options& options, World& world) {
  Proof<Scalar> proof{options, world};
  if (!proof.run()) return 1;
  if (world.rank() == 0) proof.report();
  return 0;
}

}  // namespace
}  // namespace ddp::sharded_training

int main(int argc, char** argv) {
  using namespace ddp::sharded_training;
  std::string who = "sharded_training";
  try {
    const auto parsed = parse_options(argc, argv);
    if (const int* status = std::get_if<int>(&parsed)) return *status;
    const auto& options = std::get<Options>(parsed);
    ddp::World world = ddp::World::init();
    who += fmt::format(": rank {}", world.rank());
    return options.float64 ? prove<double>(options, world) : prove<float>(options, world);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", who, error.what());
    return 1;
  }
}
