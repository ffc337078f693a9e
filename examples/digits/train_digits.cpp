// Trains a digit classifier on all ranks of a job: srun --mpi=pmix -n 4 train_digits. What libddp adds to a program for
// one process is marked with (1) to (5).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <ddp/ddp.hpp>

#include "digits/digits.hpp"

namespace {

constexpr std::size_t kTestSamples = 360;                                         // one in five
constexpr std::size_t kWidths[] = {digits::kPixels, 512, 256, digits::kClasses};  // inputs, hidden layers, outputs
constexpr float kMomentum = 0.9F;
// About one bucket for each layer of this small network, so that gradients travel during the backward pass.
constexpr std::size_t kBucketBytes = 65536;

struct Options {
  int epochs = 20;
  std::size_t batch_size = 256;
  float learning_rate = 0.2F;
  std::uint64_t seed = 1;
  std::filesystem::path data = digits::default_file();
};

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// Trains for all epochs; rank 0 reports each. Returns the accuracy on the test samples, in [0, 1].
double train(const Options& options, ddp::World& world) {
  ddp::ProcessGroup group = ddp::make_process_group(world);  // (2) the connection to the others
  const digits::Dataset dataset = digits::load(options.data);
  const std::vector<std::size_t> all = digits::shuffled_order(dataset.size(), options.seed, 0);
  const auto test = std::span{all}.first(std::min(kTestSamples, all.size()));
  const auto training = std::span{all}.subspan(test.size());

  digits::Network<float> network{kWidths, options.seed};
  ddp::Reducer reducer{digits::reducer_parameters(network),
                       group,  // (3) the same start everywhere, averaged gradients
                       {.bucket_cap_bytes = kBucketBytes,
                        .first_bucket_bytes = kBucketBytes,
                        .rebuild_buckets = true,
                        .broadcast_parameters = true}};
  double accuracy = 0;
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    double communication = 0;
    double overlap = 0;
    double loss = 0;
    std::vector<std::size_t> order =
        digits::shuffled_order(training.size(), options.seed, static_cast<std::uint64_t>(epoch));
    for (std::size_t& sample : order) sample = training[sample];
    for (const auto batch : digits::global_batches(order, options.batch_size)) {
      const auto mine = digits::shard_of(batch, world.rank(), world.world_size());  // (4) a part of the batch
      reducer.prepare_for_backward();
      loss += network.forward(digits::make_batch<float>(dataset, mine)).loss_sum;
      // The Reducer divides the sum of the ranks' gradients by world_size. So this makes it the mean over the batch,
      // also where parts are uneven; the size of the own part would weigh the samples of small parts too much.
      const float scale = static_cast<float>(world.world_size()) / static_cast<float>(batch.size());
      network.backward(scale, [&](std::size_t parameter) { reducer.mark_ready(parameter); });
      reducer.finalize();
      network.update(options.learning_rate, kMomentum);
      communication += seconds(reducer.stats().communication);
      overlap += seconds(reducer.stats().overlap);
    }
    const double rate = static_cast<double>(order.size()) / seconds(std::chrono::steady_clock::now() - start);

    const auto mine = digits::shard_of(test, world.rank(), world.world_size());
    double sums[] = {loss, static_cast<double>(network.forward(digits::make_batch<float>(dataset, mine)).correct)};
    group.all_reduce(std::span{sums}).wait();  // (5) what all ranks have found together
    loss = sums[0] / static_cast<double>(order.size());
    accuracy = sums[1] / static_cast<double>(test.size());
    if (!std::isfinite(loss)) {
      throw std::runtime_error(fmt::format("the loss of epoch {} is {}; use a smaller --learning-rate", epoch, loss));
    }
    if (world.rank() != 0) continue;
    fmt::print(
        "epoch {}/{}: loss {:.4f}, test accuracy {:.2f} %, {:.0f} samples/s, communication hidden behind backward: "
        "{}\n",
        epoch, options.epochs, loss, 100 * accuracy, rate,
        communication > 0 ? fmt::format("{:.0f} %", 100 * overlap / communication) : "none to hide");
    std::fflush(stdout);
  }
  return accuracy;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Data-parallel training of a digit classifier with libddp. Start it with srun --mpi=pmix."};
  app.option_defaults()->always_capture_default();
  const auto count = CLI::Range(1, 1'000'000'000);
  app.add_option("--epochs", options.epochs, "Passes over the training samples")->check(count);
  app.add_option("--batch-size", options.batch_size, "Samples per step, over all ranks together")->check(count);
  app.add_option("--learning-rate", options.learning_rate, "Step size of gradient descent")
      ->check(CLI::Range(1e-6, 1e2));
  app.add_option("--seed", options.seed, "Fixes the initial weights and the order of the samples")->check(count);
  app.add_option("--data", options.data, "CSV file with the digits");
  CLI11_PARSE(app, argc, argv);

  try {
    ddp::World world = ddp::World::init();  // (1) who this rank is, from the launcher
    const double accuracy = train(options, world);
    if (world.rank() == 0) {
      fmt::print("final test accuracy {:.2f} %\n", 100 * accuracy);
      fmt::print("wired up: {}; ranks: {}; nodes: {}\n", world.source_reason(), world.world_size(), world.num_nodes());
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "train_digits: {}\n", error.what());
    return 1;
  }
}
