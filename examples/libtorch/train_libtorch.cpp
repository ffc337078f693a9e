// Trains a digit classifier with libtorch on all ranks of a job: srun --mpi=pmix -n 4 train_libtorch [EPOCHS].
// What data-parallel training adds to a program for one process is marked with (1) to (5).
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <vector>

#include <ddp/ddp.hpp>
#include <ddp/torch/distributed_data_parallel.hpp>

#include "digits/digits.hpp"

namespace {

constexpr std::size_t kTestSamples = 360;
constexpr std::size_t kBatchSize = 96;  // of all ranks together
constexpr int kDefaultEpochs = 8;
constexpr std::uint64_t kSeed = 1;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
    hidden = register_module("hidden", torch::nn::Linear(16 * 4 * 4, 64));
    output = register_module("output", torch::nn::Linear(64, static_cast<std::int64_t>(digits::kClasses)));
  }
  torch::Tensor forward(torch::Tensor images) {
    images = torch::max_pool2d(torch::relu(convolution(images)), 2).flatten(1);
    return output(torch::relu(hidden(images)));
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};
TORCH_MODULE(Net);

struct Samples {
  torch::Tensor images, labels;
};

Samples take(const digits::Dataset& dataset, std::span<const std::size_t> which) {
  digits::Batch<float> batch = digits::make_batch<float>(dataset, which);
  std::vector<std::int64_t> labels(batch.labels.begin(), batch.labels.end());
  const auto count = static_cast<std::int64_t>(which.size());
  return {torch::from_blob(batch.inputs.data(), {count, 1, 8, 8}).clone(),
          torch::from_blob(labels.data(), {count}, torch::kLong).clone()};
}

double accuracy(Net& net, const Samples& test) {
  const torch::NoGradGuard no_grad;
  return net(test.images).argmax(1).eq(test.labels).to(torch::kDouble).mean().item<double>();
}

void train(int epochs) {
  ddp::World world = ddp::World::init();                           // (1) who this rank is, from the launcher
  const ddp::ProcessGroup group = ddp::make_process_group(world);  // (2) the connection to the others
  torch::set_num_threads(1);                                       // ranks share the cores of their node
  torch::manual_seed(kSeed);

  const digits::Dataset dataset = digits::load(digits::default_file());
  const std::vector<std::size_t> all = digits::shuffled_order(dataset.size(), kSeed, 0);
  const Samples test = take(dataset, std::span{all}.first(kTestSamples));
  const auto training = std::span{all}.subspan(kTestSamples);

  Net net;
  ddp::torch::DistributedDataParallel model{net, group};  // (3) the same start everywhere, and averages in backward()
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    std::vector<std::size_t> order =
        digits::shuffled_order(training.size(), kSeed, static_cast<std::uint64_t>(epoch) + 1);
    for (std::size_t& sample : order) sample = training[sample];
    for (const std::span<const std::size_t> batch : digits::global_batches(order, kBatchSize)) {
      const auto own = digits::shard_of(batch, group.rank(), group.size());  // (4) a part of the batch
      const Samples samples = take(dataset, own);
      optimizer.zero_grad();
      // A sum, divided by what makes the average over ranks the mean over the batch, also where shares are uneven.
      const double scale = static_cast<double>(group.size()) / static_cast<double>(batch.size());
      const auto loss =
          torch::nn::functional::cross_entropy(model(samples.images), samples.labels,
                                               torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
      (loss * scale).backward();
      optimizer.step();
    }
    if (group.rank() == 0) {  // (5) one rank reports; the module itself, since the others do not take part
      std::printf("epoch %d: test accuracy %.3f\n", epoch + 1, accuracy(net, test));
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? std::atoi(argv[1]) : kDefaultEpochs);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_libtorch: %s\n", error.what());
    return 1;
  }
}
