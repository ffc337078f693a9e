// What DistributedDataParallel exchanges in other ways than as buckets of the parameters' own type: mixed precision,
// sparse gradients, delayed parameters.
#include <torch/torch.h>

#include <string>
#include <vector>

#include <ddp/torch/distributed_data_parallel.hpp>

#include "scenarios.hpp"

namespace torch_test {
namespace {

using ddp::torch::DistributedDataParallel;

constexpr int kExchanges = 20;

void expect_close(const torch::Tensor& a, const torch::Tensor& b, double tolerance, const std::string& what) {
  const double limit = tolerance * std::max(b.abs().max().item<double>(), 1e-3);
  check((a - b).abs().max().item<double>() <= limit, what + " is close");
}

/// Notes the element types that it computes with.
struct ShortImpl : torch::nn::Module {
  ShortImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    last = register_module("last", torch::nn::Linear(8, 3));
    offset = register_buffer("offset", torch::ones({8}));
  }
  torch::Tensor forward(torch::Tensor inputs) {
    types = {inputs.scalar_type(), first->weight.scalar_type(), offset.scalar_type()};
    hidden = torch::tanh(first(inputs)) * offset.to(inputs.scalar_type());
    return last(hidden);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::Tensor offset, hidden;
  std::vector<torch::ScalarType> types;
};
TORCH_MODULE(Short);

torch::Tensor loss_of(const torch::Tensor& outputs) { return outputs.to(torch::kFloat).square().mean(); }

/// What a rank's backward pass in bfloat16 gives for the parameters of @p net, in float32.
std::vector<torch::Tensor> short_gradients(const Short& net, const torch::Tensor& inputs) {
  Short copy;
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters()) copy->named_parameters()[item.key()].copy_(item.value());
  }
  copy->to(torch::kBFloat16);
  loss_of(copy(inputs.to(torch::kBFloat16))).backward();
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : copy->parameters()) gradients.push_back(parameter.grad().to(torch::kFloat));
  return gradients;
}

void expect_types(const Short& net, torch::ScalarType type, const std::string& when) {
  for (const auto& parameter : net->parameters()) {
    check(parameter.scalar_type() == type, std::string{"parameters are "} + torch::toString(type) + " " + when);
  }
}

/// Steps of two passes, against the arithmetic written down: passes in bfloat16, sums of them in float32.
void mixed_precision(const ddp::ProcessGroup& group, bool view, torch::ScalarType reduce) {
  const int size = group.size();
  torch::manual_seed(group.rank());
  Short net;
  DistributedDataParallel model{
      net,
      group,
      {.bucket_cap_bytes = 64,
       .gradient_as_bucket_view = view,
       .mixed_precision = {.param = torch::kBFloat16, .reduce = reduce, .buffer = torch::kHalf}}};
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  // bfloat16 has 8 bits: each rank's part is rounded, and so may be each sum
  const double tolerance = reduce == torch::kFloat ? 1e-5 : 0.01 * size;
  for (int step = 0; step < kExchanges; ++step) {
    torch::manual_seed(100 + step);
    const auto inputs = torch::randn({2, size, 5, 6});
    std::vector<torch::Tensor> expected;
    for (int pass = 0; pass < 2; ++pass) {
      for (int rank = 0; rank < size; ++rank) {
        const auto gradients = short_gradients(net, inputs[pass][rank]);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          if (expected.size() <= i) expected.push_back(torch::zeros_like(gradients[i]));
          expected[i] += gradients[i] / size;
        }
      }
    }
    optimizer.zero_grad(step % 2 == 0);
    {
      const auto alone = model->no_sync();
      loss_of(model(inputs[0][group.rank()])).backward();
    }
    loss_of(model(inputs[1][group.rank()])).backward();
    check(net->types == std::vector{torch::kBFloat16, torch::kBFloat16, torch::kHalf}, "types of a forward pass");
    expect_types(net, torch::kFloat, "between passes");
    const auto parameters = net->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      check(parameters[i].grad().scalar_type() == torch::kFloat, "gradients are kept in the parameters' type");
      expect_close(parameters[i].grad(), expected[i], tolerance, "gradient " + std::to_string(i));
    }
    optimizer.step();
  }
}

void mixed_precision_and_mistakes(const ddp::ProcessGroup& group) {
  Short net;
  DistributedDataParallel model{net, group, {.mixed_precision = {.param = torch::kBFloat16}}};
  const auto inputs = torch::ones({2, 6});
  const auto dropped = model(inputs);
  expect_types(net, torch::kFloat, "after a forward pass");
  const auto outputs = model(inputs);
  net->hidden.register_hook([&](const torch::Tensor&) -> torch::Tensor {
    expect_types(net, torch::kBFloat16, "in a backward pass");
    throw std::runtime_error("broken");
  });
  bool thrown = false;
  try {
    loss_of(outputs).backward();
  } catch (const std::exception& error) {
    thrown = std::string{error.what()}.find("broken") != std::string::npos;
  }
  check(thrown, "the error of the hook arrives");
  expect_types(net, torch::kFloat, "after a backward pass that failed");
  model->change_group(group);
  loss_of(model(inputs)).backward();
  check(net->last->weight.grad().defined(), "the step after a failure");
  error_of("not a floating-point type", [&] {
    DistributedDataParallel{Short(), group, {.mixed_precision = {.param = torch::kInt}}};
  });
}

struct WordsImpl : torch::nn::Module {
  WordsImpl() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)));
    dense = register_module("dense", torch::nn::Linear(4, 3));
  }
  torch::Tensor forward(const torch::Tensor& words, bool with_table) {
    const auto hidden = with_table ? table(words) : torch::ones({words.size(0), 4}, torch::kDouble);
    return dense(hidden).square().sum();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear dense{nullptr};
};
TORCH_MODULE(Words);

Words make_words(unsigned seed) {
  torch::manual_seed(seed);
  Words net;
  net->to(torch::kDouble);
  return net;
}

/// Each rank has another number of words, some of them twice.
torch::Tensor words_of(int rank, int step) {
  torch::manual_seed(1000 * step + rank);
  return torch::randint(10, {2 * rank + 3}, torch::kLong);
}

void sparse_gradients(const ddp::ProcessGroup& group, bool view, bool find_unused) {
  const int size = group.size();
  Words whole = make_words(7), net = make_words(static_cast<unsigned>(7 + group.rank()));
  DistributedDataParallel model{
      net, group, {.bucket_cap_bytes = 64, .gradient_as_bucket_view = view, .find_unused_parameters = find_unused}};
  torch::optim::SGD whole_optimizer(whole->parameters(), 0.01), optimizer(model->parameters(), 0.01);
  for (int step = 0; step < kExchanges; ++step) {
    const auto uses = [&](int rank) { return !find_unused || (step % 3 != 0 && rank <= step % 3 - 1); };
    whole_optimizer.zero_grad();
    optimizer.zero_grad();
    bool used = false;
    for (int pass = 0; pass < 2; ++pass) {
      auto sum = torch::zeros({}, torch::kDouble);
      for (int rank = 0; rank < size; ++rank) {
        sum = sum + whole(words_of(rank, step + 50 * pass), uses(rank));
        used = used || uses(rank);
      }
      (sum / size).backward();
      std::optional<ddp::torch::GradientAverager::Guard> alone;
      if (pass == 0) alone.emplace(model->no_sync());
      model(words_of(group.rank(), step + 50 * pass), uses(group.rank())).backward();
    }
    const auto gradient = net->table->weight.grad();
    check(gradient.defined() == used, "what no rank uses has no gradient");
    if (used) {
      check(gradient.is_sparse() && gradient.is_coalesced(), "a sparse gradient stays one");
      expect_close(gradient.to_dense(), whole->table->weight.grad().to_dense(), 1e-12, "sparse gradient");
    }
    expect_close(net->dense->weight.grad(), whole->dense->weight.grad(), 1e-12, "dense gradient");
    whole_optimizer.step();
    optimizer.step();
    expect_close(net->table->weight, whole->table->weight, 1e-12, "embedding");
  }
}

/// A sparse gradient that nobody has announced.
struct HiddenSparseImpl : torch::nn::Module {
  HiddenSparseImpl() { table = register_parameter("table", torch::ones({4, 3})); }
  torch::Tensor forward(const torch::Tensor& words) { return torch::embedding(table, words, -1, false, true).sum(); }
  torch::Tensor table;
};
TORCH_MODULE(HiddenSparse);

void sparse_mistakes(const ddp::ProcessGroup& group) {
  const auto words = torch::zeros({2}, torch::kLong);
  {
    DistributedDataParallel hidden{HiddenSparse(), group};
    const auto guard = hidden->several_backwards();
    error_of("sparse", [&] { hidden(words).backward(); });
    error_of("sparse", [&] { hidden(words).backward(); });  // as often as it is tried
  }
  HiddenSparse named;
  DistributedDataParallel model{named, group, {.sparse = {"table"}}};
  model(words).backward();
  check(torch::equal(named->table.grad().to_dense()[0], torch::full({3}, 2.0)), "a parameter that is named as sparse");
  if (group.size() == 1) return;
  const bool last = group.rank() == group.size() - 1;
  const auto other = [&] {
    DistributedDataParallel{torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 3).sparse(last)), group};
  };
  check(error_of("with a sparse gradient", other) == ddp::ErrorCode::mismatch, "all ranks hear of another kind");
}

/// Wrapped, unwrapped and wrapped again: the first wrapper leaves nothing behind.
void second_wrapping(const ddp::ProcessGroup& group) {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  const auto inputs = torch::full({1, 3}, group.rank() + 1.0);
  const auto train = [&](std::set<std::string> delayed, std::optional<std::string> behind = {}) {
    DistributedDataParallel model{
        net, group, {.bucket_cap_bytes = 1, .delayed = std::move(delayed), .delayed_behind = std::move(behind)}};
    net->zero_grad();
    model(inputs).sum().backward();
    return std::make_pair(net->parameters()[3].grad().clone(), model->reducer().buckets());
  };
  const auto [first, plain] = train({});
  const auto [second, delayed] = train({"0.bias", "1.bias"});
  check(torch::equal(first, torch::ones({2})) && torch::equal(first, second), "averaged once");
  check(plain.size() == 4 && delayed.size() == 3 && delayed.back() == std::vector<std::size_t>{1, 3},
        "delayed ones come together, in the end");
  const auto [third, behind] = train({"0.bias", "1.bias"}, "1.weight");
  check(torch::equal(first, third) && behind == decltype(behind){{2}, {1, 3}, {0}}, "or behind the bucket of one");
  error_of("to delay", [&] { train({"2.bias"}); });
  error_of("to delay others behind", [&] { train({"1.bias"}, "2.bias"); });
}

}  // namespace

void exchanges_of_all_kinds(ddp::ProcessGroup group) {
  for (const bool view : {false, true}) {
    for (const auto reduce : {torch::kFloat, torch::kBFloat16}) mixed_precision(group, view, reduce);
    for (const bool find_unused : {false, true}) sparse_gradients(group, view, find_unused);
  }
  mixed_precision_and_mistakes(group);
  sparse_mistakes(group);
  second_wrapping(group);
}

}  // namespace torch_test
