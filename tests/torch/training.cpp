// Data-parallel training against training in one process, and against PyTorch's.
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>

#include <ddp/torch/distributed_data_parallel.hpp>

#include "scenarios.hpp"

namespace torch_test {
namespace {

using ddp::torch::DistributedDataParallel;

constexpr int kSteps = 20;
constexpr int kSamplesOfRank = 4;
constexpr std::size_t kBucketBytes = 256;  // several buckets

/// A layer that is used twice and has two names, and one that only some passes use.
struct BranchedImpl : torch::nn::Module {
  BranchedImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    twice = register_module("twice", torch::nn::Linear(8, 8));
    register_module("again", twice);
    rare = register_module("rare", torch::nn::Linear(8, 8));
    last = register_module("last", torch::nn::Linear(8, 3));
  }
  torch::Tensor forward(torch::Tensor inputs, bool with_rare) {
    auto hidden = torch::tanh(first(inputs));
    hidden = torch::tanh(twice(torch::tanh(twice(hidden))));
    if (with_rare) hidden = hidden + torch::tanh(rare(hidden));
    return last(hidden);
  }
  torch::nn::Linear first{nullptr}, twice{nullptr}, rare{nullptr}, last{nullptr};
};
TORCH_MODULE(Branched);

enum class Graph { all_used, changing, fixed };

bool uses_rare(Graph graph, int rank, int step) {
  if (graph == Graph::all_used) return true;
  if (graph == Graph::fixed) return rank == 0;
  switch (step % 4) {
    case 0: return false;
    case 1: return rank == 0;
    case 2: return rank % 2 == 1;
    default: return true;
  }
}

struct Mode {
  bool view;
  Graph graph;
  bool hook;
  bool accumulates;  ///< two passes a step, the first in no_sync

  std::string description(int size) const {
    return std::to_string(size) + " ranks, view " + std::to_string(view) + ", graph " +
           std::to_string(static_cast<int>(graph)) + ", hook " + std::to_string(hook) + ", accumulates " +
           std::to_string(accumulates);
  }
};

/// The same on every rank: what one process would have.
struct Data {
  torch::Tensor inputs, targets;
  Data(int step, int pass, int ranks) {
    torch::manual_seed(1000 * step + pass);
    inputs = torch::randn({ranks, kSamplesOfRank, 6}, torch::kDouble);
    targets = torch::randn({ranks, kSamplesOfRank, 3}, torch::kDouble);
  }
};

Branched make_net(unsigned seed) {
  torch::manual_seed(seed);
  Branched net;
  net->to(torch::kDouble);
  return net;
}

void expect_equal(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
  check(a.defined() == b.defined(), what + " is defined in both or neither");
  if (a.defined()) check((a - b).abs().max().item<double>() < 1e-12, what + " is equal");
}

void train_in_mode(ddp::ProcessGroup group, const Mode& mode) {
  const int ranks = group.size();
  Branched whole = make_net(7);
  // other values on other ranks, until rank 0's come
  Branched net = make_net(7 + static_cast<unsigned>(group.rank()));
  DistributedDataParallel model{
      net, group,
      ddp::torch::DistributedDataParallelOptions{.bucket_cap_bytes = kBucketBytes,
                                                 .gradient_as_bucket_view = mode.view,
                                                 .find_unused_parameters = mode.graph == Graph::changing,
                                                 .static_graph = mode.graph == Graph::fixed,
                                                 .comm_hook = mode.hook ? ddp::all_reduce_hook() : nullptr}};
  const auto settings = torch::optim::SGDOptions(0.05).momentum(0.9);
  torch::optim::SGD whole_optimizer(whole->parameters(), settings);
  torch::optim::SGD optimizer(model->parameters(), settings);
  for (int step = 0; step < kSteps; ++step) {
    const bool set_to_none = step % 3 != 2;
    whole_optimizer.zero_grad(set_to_none);
    optimizer.zero_grad(set_to_none);
    for (int pass = mode.accumulates ? 0 : 1; pass < 2; ++pass) {
      const Data data(step, pass, ranks);
      torch::Tensor sum = torch::zeros({}, torch::kDouble);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto outputs = whole(data.inputs[rank], uses_rare(mode.graph, rank, step));
        sum = sum + torch::mse_loss(outputs, data.targets[rank]);
      }
      (sum / ranks).backward();

      std::optional<ddp::torch::GradientAverager::Guard> alone;
      if (pass == 0) alone.emplace(model->no_sync());
      const auto outputs = model(data.inputs[group.rank()], uses_rare(mode.graph, group.rank(), step));
      alone.reset();  // the forward pass counts
      torch::mse_loss(outputs, data.targets[group.rank()]).backward();
    }
    const auto expected = whole->named_parameters();
    const auto parameters = net->named_parameters();
    for (const auto& item : parameters) {
      expect_equal(item.value().grad(), expected[item.key()].grad(),
                   "step " + std::to_string(step) + ": gradient of " + item.key());
    }
    whole_optimizer.step();
    optimizer.step();
    for (const auto& item : parameters) {
      expect_equal(item.value(), expected[item.key()], "step " + std::to_string(step) + ": " + item.key());
    }
  }
}

}  // namespace

void equal_to_one_process(ddp::ProcessGroup group) {
  for (const bool view : {false, true}) {
    for (const Graph graph : {Graph::all_used, Graph::changing, Graph::fixed}) {
      for (const bool hook : {false, true}) {
        for (const bool accumulates : {false, true}) {
          const Mode mode{view, graph, hook, accumulates};
          try {
            train_in_mode(group, mode);
          } catch (const std::exception& error) {
            throw std::runtime_error(mode.description(group.size()) + ": " + error.what());
          }
        }
      }
    }
  }
}

void killed_in_backward(ddp::ProcessGroup group) {
  DistributedDataParallel model{make_net(7), group, {.bucket_cap_bytes = kBucketBytes}};
  for (int step = 0;; ++step) {
    const Data data(step, 0, group.size());
    auto outputs = model(data.inputs[group.rank()], true);
    if (step == 3 && group.rank() == group.size() - 1) {
      // the last layer's gradients are under way by now
      model->module()->first->weight.register_hook([](const torch::Tensor&) { std::raise(SIGKILL); });
    }
    try {
      outputs.sum().backward();
    } catch (const ddp::Error& error) {
      check(error.code() == ddp::ErrorCode::peer_lost, error.what());
      std::printf("lost in step %d: %s\n", step, ddp::format_ranks(error.ranks()).c_str());
      error_of("", [&] { model(data.inputs[group.rank()], true).sum().backward(); });
      return;
    }
  }
}

void train_from_files(ddp::ProcessGroup group, const std::string& folder) {
  const auto read = [&](const std::string& name, torch::IntArrayRef shape, torch::ScalarType type = torch::kFloat) {
    auto tensor = torch::empty(shape, type);
    std::ifstream file(folder + "/" + name, std::ios::binary);
    file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
    check(file.good(), name + " can be read");
    return tensor;
  };
  torch::nn::Sequential net(torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(20, 8).sparse(true)),
                            torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 16), torch::nn::Tanh(),
                            torch::nn::Linear(16, 4));
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : net->named_parameters()) item.value().copy_(read(item.key(), item.value().sizes()));
  }
  const auto inputs = read("inputs", {kSteps, group.size(), 5, 8}, torch::kLong);
  const auto targets = read("targets", {kSteps, group.size(), 5, 4});
  DistributedDataParallel model{net, group, {.bucket_cap_bytes = 512}};
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(model(inputs[step][group.rank()]), targets[step][group.rank()]).backward();
    optimizer.step();
  }
  if (group.rank() != 0) return;
  for (const auto& item : model->named_parameters()) {  // by PyTorch's names, with "module."
    std::ofstream file(folder + "/trained." + item.key(), std::ios::binary);
    file.write(static_cast<const char*>(item.value().data_ptr()), static_cast<std::streamsize>(item.value().nbytes()));
  }
}

}  // namespace torch_test
