// Trains a digit classifier on all ranks of a job: srun --mpi=pmix -n 4 train_digits. The shortest whole use of libddp.
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <ddp/ddp.hpp>

#include "digits/dataset.hpp"
#include "digits/learner.hpp"
#include "digits/network.hpp"
#include "digits/optimizer.hpp"
#include "digits/reducer_parameters.hpp"
#include "digits/sample_order.hpp"
#include "digits/shard.hpp"
#ifdef DIGITS_CUDA
#include "digits/cuda/device_learner.hpp"
#endif

namespace {

constexpr std::size_t kTestSamples = 360;  // one in five of the 1,797, as is customary with this data
constexpr int kUsageExit = 2;              // what shells and most programs return for a wrong command line
constexpr int kLargestCount = 1'000'000'000;
constexpr double kSmallestRate = 1e-6;
constexpr double kLargestRate = 100;

// Wide enough that the backward pass takes some time, in which gradients can travel.
constexpr std::size_t kWidths[] = {digits::kPixels, 512, 256, digits::kClasses};

struct Options {
  int epochs = 20;
  std::size_t batch_size = 256;
  float learning_rate = 0.2F;
  float momentum = 0.9F;
  std::uint64_t seed = 1;
  std::filesystem::path data;
  // One bucket per layer of this network; the 25 MiB that suit large models would put all of it into one, and then
  // nothing could overlap with the backward pass.
  std::size_t bucket_cap_bytes = 65536;
  std::string device = "cpu";
};

/// The options, or the exit status when there is nothing to run (--help, a mistake that has been reported).
std::variant<Options, int> parse_options(int argc, char** argv) {
  Options options;
  options.data = digits::default_digits_file();
  CLI::App app{"Data-parallel training of a digit classifier with libddp. Start it with srun --mpi=pmix."};
  app.add_option("--epochs", options.epochs, "Passes over the training samples")
      ->check(CLI::Range(1, kLargestCount))
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples per step, over all ranks together")
      ->check(CLI::Range(1, kLargestCount))
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "Step size of gradient descent")
      ->check(CLI::Range(kSmallestRate, kLargestRate))
      ->capture_default_str();
  app.add_option("--momentum", options.momentum, "Share of the last update that is kept")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Fixes the initial weights and the order of the samples")
      ->check(CLI::Range(0, kLargestCount))
      ->capture_default_str();
  app.add_option("--data", options.data, "CSV file with the digits")->capture_default_str();
  app.add_option("--bucket-cap-bytes", options.bucket_cap_bytes, "Gradients are sent in buckets of about this size")
      ->check(CLI::Range(1, kLargestCount))
      ->capture_default_str();
#ifdef DIGITS_CUDA
  app.add_option("--device", options.device, "cpu, or cuda: each rank on a GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
#else
  app.add_option("--device", options.device, "cpu; built without nvcc, so that there is no cuda")
      ->check(CLI::IsMember({"cpu"}))
      ->capture_default_str();
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    fmt::print(stderr, "train_digits: {}; train_digits --help lists the options\n", error.what());
    return kUsageExit;
  }
  return options;
}

/// Learns on the processor.
class HostLearner final : public digits::Learner {
 public:
  HostLearner(const Options& options, const ddp::ProcessGroup& group)
      : network_(kWidths, options.seed),
        reducer_(digits::reducer_parameters(network_), group,
                 {.bucket_cap_bytes = options.bucket_cap_bytes,
                  .first_bucket_bytes = options.bucket_cap_bytes,
                  .rebuild_buckets = true,
                  .broadcast_parameters = true}),
        optimizer_(network_.parameters(), options.learning_rate, options.momentum) {}

  double learn(const digits::Batch<float>& batch, float scale) override {
    reducer_.prepare_for_backward();
    const auto outcome = network_.forward(batch);
    network_.backward(scale, [this](std::size_t parameter) { reducer_.mark_ready(parameter); });
    reducer_.finalize();
    optimizer_.step();
    return outcome.loss_sum;
  }
  std::size_t correct(const digits::Batch<float>& batch) override { return network_.forward(batch).correct; }
  const ddp::ReducerStats* stats() const override { return &reducer_.stats(); }

 private:
  digits::Network<float> network_;
  ddp::Reducer reducer_;
  digits::SgdMomentum<float> optimizer_;
};

std::unique_ptr<digits::Learner> make_learner(const Options& options, const ddp::World& world, ddp::ProcessGroup group,
                                              std::size_t samples) {
#ifdef DIGITS_CUDA
  if (options.device == "cuda") {
    return digits::cuda::make_device_learner(world, std::move(group),
                                             {.widths = kWidths,
                                              .seed = options.seed,
                                              .max_batch = samples,
                                              .learning_rate = options.learning_rate,
                                              .momentum = options.momentum});
  }
#endif
  (void)world;
  (void)samples;
  return std::make_unique<HostLearner>(options, group);
}

/// One process's part of the training.
class Trainer {
 public:
  Trainer(const Options& options, ddp::World& world)
      : options_(options),
        world_(world),
        group_(ddp::make_process_group(world)),
        dataset_(digits::load_digits(options.data)),
        split_(digits::split_train_test(dataset_.size(), kTestSamples, options.seed)),
        learner_(make_learner(options, world, group_, dataset_.size())) {}

  /// Trains for all epochs; rank 0 reports each. Returns the accuracy on the test samples, in [0, 1].
  double run() {
    double accuracy = 0;
    for (int epoch = 1; epoch <= options_.epochs; ++epoch) {
      const EpochResult result = train_epoch(epoch);
      accuracy = test_accuracy();
      if (world_.rank() == 0) report(epoch, result, accuracy);
    }
    return accuracy;
  }

 private:
  using Seconds = std::chrono::duration<double>;

  struct EpochResult {
    double mean_loss;
    double samples_per_second;     ///< over all ranks together
    std::optional<double> hidden;  ///< share of this rank's communication that ran within its backward pass
  };

  EpochResult train_epoch(int epoch) {
    const auto start = std::chrono::steady_clock::now();
    Seconds communication{};
    Seconds overlap{};
    double loss_sum = 0;
    std::vector<std::size_t> order =
        digits::shuffled_order(split_.train.size(), options_.seed, static_cast<std::uint64_t>(epoch));
    for (std::size_t& position : order) position = split_.train[position];

    for (const auto batch : digits::global_batches(order, options_.batch_size)) {
      loss_sum += step(batch);
      if (const ddp::ReducerStats* stats = learner_->stats()) {
        communication += stats->communication;
        overlap += stats->overlap;
      }
    }
    const Seconds elapsed = std::chrono::steady_clock::now() - start;

    group_.all_reduce(std::span{&loss_sum, 1}).wait();
    const double mean_loss = loss_sum / static_cast<double>(order.size());
    if (!std::isfinite(mean_loss)) {
      throw ddp::Error{{.code = ddp::ErrorCode::invalid_argument,
                        .attempted = fmt::format("training epoch {}", epoch),
                        .cause = fmt::format("the loss is {}", mean_loss),
                        .hint = "use a smaller --learning-rate or --momentum"}};
    }
    return {.mean_loss = mean_loss,
            .samples_per_second = static_cast<double>(order.size()) / elapsed.count(),
            .hidden = communication.count() > 0 ? std::optional{overlap / communication} : std::nullopt};
  }

  /// One update from a batch of all ranks together; returns the summed loss of this rank's part.
  double step(std::span<const std::size_t> batch) {
    const auto mine = digits::shard_of(batch, world_.rank(), world_.world_size());
    // Not 1 / mine.size(): see shard_of.
    const float scale = static_cast<float>(world_.world_size()) / static_cast<float>(batch.size());
    return learner_->learn(digits::make_batch<float>(dataset_, mine), scale);
  }

  /// Every rank classifies its part of the test samples; all learn the result.
  double test_accuracy() {
    const auto mine = digits::shard_of(split_.test, world_.rank(), world_.world_size());
    auto correct = static_cast<std::int64_t>(learner_->correct(digits::make_batch<float>(dataset_, mine)));
    group_.all_reduce(std::span{&correct, 1}).wait();
    return static_cast<double>(correct) / static_cast<double>(split_.test.size());
  }

  void report(int epoch, const EpochResult& result, double accuracy) const {
    const char* const otherwise = learner_->stats() == nullptr ? "not measured" : "none to hide";
    const std::string hidden = result.hidden ? fmt::format("{:.0f} %", 100 * *result.hidden) : otherwise;
    fmt::print(
        "epoch {}/{}: loss {:.4f}, test accuracy {:.2f} %, {:.0f} samples/s, communication hidden behind backward: "
        "{}\n",
        epoch, options_.epochs, result.mean_loss, 100 * accuracy, result.samples_per_second, hidden);
    std::fflush(stdout);
  }

  const Options& options_;
  ddp::World& world_;
  ddp::ProcessGroup group_;
  digits::Dataset dataset_;
  digits::Split split_;
  std::unique_ptr<digits::Learner> learner_;
};

void report_end(const ddp::World& world, double accuracy) {
  const std::string interface = world.interface_name().empty()
                                    ? "none"
                                    : fmt::format("{} ({})", world.interface_name(), world.interface_address());
  fmt::print("final test accuracy {:.2f} %\n", 100 * accuracy);
  fmt::print("wired up: {}; ranks: {}; nodes: {}; interface: {}\n", world.source_reason(), world.world_size(),
             world.num_nodes(), interface);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::string who = "train_digits";
  try {
    const auto options = parse_options(argc, argv);
    if (const int* status = std::get_if<int>(&options)) return *status;
    ddp::World world = ddp::World::init();
    who += fmt::format(": rank {}", world.rank());
    const double accuracy = Trainer{std::get<Options>(options), world}.run();
    if (world.rank() == 0) report_end(world, accuracy);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", who, error.what());
    return 1;
  }
}
