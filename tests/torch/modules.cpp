// Modules, passes and mistakes of many kinds under DistributedDataParallel.
#include <torch/torch.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <ddp/torch/distributed_data_parallel.hpp>

#include "scenarios.hpp"

namespace torch_test {
namespace {

using ddp::torch::DistributedDataParallel;

/// A parameter p whose gradient is the factor that the loss multiplies it by: easy to predict.
struct ScaledImpl : torch::nn::Module {
  explicit ScaledImpl(torch::ScalarType type = torch::kFloat) {
    p = register_parameter("p", torch::ones({3}, type));
    q = register_parameter("q", torch::ones({2}, type));
  }
  torch::Tensor forward(double scale, bool with_q = true) {
    const auto sum = (p * scale).sum();
    return with_q ? sum + (q * scale).sum() : sum;
  }
  torch::Tensor p, q;
};
TORCH_MODULE(Scaled);

struct Ranks {
  explicit Ranks(const ddp::ProcessGroup& group)
      : own(group.rank() + 1.0), mean((group.size() + 1) / 2.0), size(group.size()) {}
  double own;   ///< this rank's gradient
  double mean;  ///< the average of all
  int size;
};

void expect(const torch::Tensor& tensor, double value, const std::string& what) {
  if (tensor.defined() && (tensor - value).abs().max().item<double>() < 1e-3) return;
  check(false, what + " is " + std::to_string(value) + ", not " + c10::str(tensor));
}

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kComplexFloat}) {
      parts.push_back(register_parameter(std::string{"p"} + torch::toString(type), torch::ones({5}, type)));
    }
    image = register_parameter("image", torch::ones({2, 3, 4, 4}).contiguous(torch::MemoryFormat::ChannelsLast));
    frozen = register_parameter("frozen", torch::ones({2}), false);
    empty = register_parameter("empty", torch::ones({0}));
    count = register_buffer("count", torch::zeros({2}, torch::kShort));
    strided = register_buffer("strided", torch::zeros({4, 6}).t());
  }
  torch::Tensor forward(double scale) {
    seen = {count.clone(), strided.clone(), frozen.clone()};
    torch::Tensor sum = (image * scale).sum() + empty.sum();
    for (const auto& part : parts) {
      const auto product = (part * scale).sum();
      sum = sum + (part.is_complex() ? torch::real(product) : product).to(torch::kFloat);
    }
    return sum;
  }
  std::vector<torch::Tensor> parts, seen;
  torch::Tensor image, frozen, empty, count, strided;
};
TORCH_MODULE(Mixed);

void element_types_layouts_and_buffers(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  for (const bool view : {false, true}) {
    Mixed net;
    {
      const torch::NoGradGuard no_grad;
      for (auto& tensor : net->buffers()) tensor.fill_(ranks.own);
      net->frozen.fill_(ranks.own);
    }
    DistributedDataParallel model{net, group, {.bucket_caps_bytes = {16, 64}, .gradient_as_bucket_view = view}};
    for (int step = 0; step < 3; ++step) {
      model(ranks.own).backward();
      for (const auto& seen : net->seen) expect(seen, 1 + step * (&seen != &net->seen[2]), "what rank 0 has");
      for (const auto& part : net->parts) expect(part.grad(), ranks.mean, torch::toString(part.scalar_type()));
      expect(net->image.grad(), ranks.mean, "channels last");
      check(net->image.grad().strides() == net->image.strides(), "a gradient lies like its parameter");
      check(!net->frozen.grad().defined(), "no gradient where none is wanted");
      for (auto& tensor : net->buffers()) tensor.fill_(ranks.own + step + 1);  // rank 0's are one larger in each step
      model->zero_grad(step == 0);
    }
  }
}

void names_and_ignored_ones(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  Scaled net;
  {
    const torch::NoGradGuard no_grad;
    net->p.fill_(ranks.own);
    net->q.fill_(ranks.own);
  }
  DistributedDataParallel model{net, group, {.ignored = {"q"}}};
  check(model->named_parameters().keys() == std::vector<std::string>{"module.p", "module.q"}, "PyTorch's names");
  expect(net->p, 1, "rank 0's value");
  expect(net->q, ranks.own, "an ignored value");
  model(ranks.own).backward();
  expect(net->p.grad(), ranks.mean, "average");
  expect(net->q.grad(), ranks.own, "an ignored gradient");
  error_of("no parameter or buffer 'r'", [&] { DistributedDataParallel{net, group, {.ignored = {"r"}}}; });
}

void passes_of_all_kinds(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  for (const bool view : {false, true}) {
    Scaled net;
    DistributedDataParallel model{net, group, {.gradient_as_bucket_view = view}};
    const auto expect_then_clear = [&](double value, const std::string& what) {
      expect(net->p.grad(), value, what);
      expect(net->q.grad(), value, what);
      model->zero_grad();
    };
    model(ranks.own);  // dropped
    {
      const torch::NoGradGuard no_grad;
      model(ranks.own);
    }
    const auto kept = model(ranks.own);  // never used
    (model(ranks.own) + model(2 * ranks.own)).backward();
    expect_then_clear(3 * ranks.mean, "two forward passes, one backward pass");

    const auto one = model(ranks.own), two = model(10 * ranks.own);
    one.backward();
    expect(net->p.grad(), ranks.mean, "the first of two");
    two.backward();
    // the average of the accumulated gradients, as with one process: 1 * mean + 10 * mean
    expect_then_clear(11 * ranks.mean, "the second of two");

    auto again = model(ranks.own);
    again.backward({}, /*retain_graph=*/true);
    again.backward();
    expect_then_clear(2 * ranks.mean, "the same graph twice");

    const auto first = model(ranks.own, false), second = model(ranks.own);
    {
      const auto guard = model->several_backwards();
      first.backward();
      if (!view) expect(net->p.grad(), ranks.own, "not averaged yet");
    }
    error_of("marked ready before", [&] { second.backward(); });  // p, a second time
    model->zero_grad();
    model(ranks.own).backward();  // the step again
    expect_then_clear(ranks.mean, "after a backward pass that has failed");
    {
      const auto open = model(ranks.own);
      const auto guard = model->several_backwards();
      open.backward();
    }
    error_of("has not ended its step", [&] { model(ranks.own); });
    model->change_group(group), model->zero_grad();

    const auto output = model(ranks.own);
    const auto parts = torch::autograd::grad({output}, {net->p}, {}, /*retain_graph=*/true);
    expect(parts[0], ranks.own, "grad() averages nothing");
    output.backward();
    expect_then_clear(ranks.mean, "after grad()");
  }
}

/// Its graph holds a non-contiguous buffer.
struct StridedImpl : torch::nn::Module {
  StridedImpl() {
    p = register_parameter("p", torch::ones({2, 3}));
    buffer = register_buffer("buffer", torch::ones({3, 2}).t());
  }
  torch::Tensor forward(double scale) { return (p * buffer * scale).sum(); }
  torch::Tensor p, buffer;
};
TORCH_MODULE(Strided);

void two_passes_with_a_strided_buffer(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  Strided net;
  {
    const torch::NoGradGuard no_grad;
    net->buffer.fill_(ranks.own);  // rank 0's: 1
  }
  DistributedDataParallel model{net, group};
  const auto first = model(ranks.own), second = model(ranks.own);
  (first + second).backward();
  expect(net->p.grad(), 2 * ranks.mean, "of two forward passes");
  expect(net->buffer, 1, "rank 0's buffer");
}

/// Keeps its loss.
struct KeepingImpl : ScaledImpl {
  double forward(double scale) {
    loss = ScaledImpl::forward(scale);
    return loss.item<double>();
  }
  torch::Tensor loss;
};
TORCH_MODULE(Keeping);

void kept_losses(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  for (const bool unused : {false, true}) {
    Keeping net;
    DistributedDataParallel model{net, group, {.find_unused_parameters = unused}};
    for (int step = 0; step < 2; ++step) {
      model(ranks.own);
      net->loss.backward({}, /*retain_graph=*/true);
      expect(net->q.grad(), ranks.mean, "of a loss that the module keeps");
      error_of("or its step has ended", [&] { net->loss.backward(); });
      model->zero_grad();
    }
  }
}

/// Its gradient also flows to its input.
struct JudgeImpl : torch::nn::Module {
  JudgeImpl() { weight = register_parameter("weight", torch::ones({3})); }
  torch::Tensor forward(const torch::Tensor& of) { return (weight * of).sum(); }
  torch::Tensor weight;
};
TORCH_MODULE(Judge);

void frozen_modules(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  Scaled maker;
  Judge judge;
  DistributedDataParallel model{maker, group};
  DistributedDataParallel frozen{judge, group};
  for (int step = 0; step < 3; ++step) {
    frozen(torch::full({3}, ranks.own)).backward();
    expect(judge->weight.grad(), ranks.mean, "of one that learns");
    judge->zero_grad();
    judge->weight.requires_grad_(false);
    frozen(model(ranks.own)).backward();
    expect(maker->p.grad(), 3 * ranks.mean, "through one that is frozen");
    check(!judge->weight.grad().defined(), "nothing for it");
    judge->weight.requires_grad_(true);
    maker->zero_grad();
  }
}

void changed_modules(const ddp::ProcessGroup& group) {
  Scaled net;
  net->q.requires_grad_(false);
  DistributedDataParallel model{net, group, {.find_unused_parameters = true}};
  net->q.requires_grad_(true);
  error_of("parameter 'q' has been unfrozen since it was wrapped", [&] { model(1.0); });
  net->q.requires_grad_(false);
  net->to(torch::kDouble);
  error_of("parameter 'p' has become Double[3] on cpu since it was wrapped as Float", [&] { model(1.0); });
}

struct ManyOutputsImpl : torch::nn::Module {
  ManyOutputsImpl() {
    a = register_parameter("a", torch::ones({2}));
    b = register_parameter("b", torch::ones({2}));
  }
  std::tuple<torch::Tensor, std::map<std::string, std::vector<torch::Tensor>>> forward(double scale) {
    return {(a * scale).sum(), {{"b", {(b * scale).sum()}}}};
  }
  torch::Tensor a, b;
};
TORCH_MODULE(ManyOutputs);

void several_outputs(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  ManyOutputs net;
  DistributedDataParallel model{net, group};
  auto [a, rest] = model(ranks.own);
  {
    const auto guard = model->several_backwards();
    a.backward();
  }
  rest["b"][0].backward();
  expect(net->a.grad(), ranks.mean, "first output");
  expect(net->b.grad(), ranks.mean, "second output");

  // an output that the loss does not need
  ManyOutputs other;
  DistributedDataParallel finder{other, group, {.find_unused_parameters = true}};
  std::get<0>(finder(ranks.own)).backward();
  expect(other->a.grad(), ranks.mean, "used");
  check(!other->b.grad().defined(), "unused");
}

/// Rank r has r + 1 batches; a buffer counts the passes of the authoritative rank.
struct CountingImpl : ScaledImpl {
  CountingImpl() { passes = register_buffer("passes", torch::zeros({1}, torch::kLong)); }
  torch::Tensor forward(double scale) {
    passes += 1;
    return ScaledImpl::forward(scale);
  }
  torch::Tensor passes;
};
TORCH_MODULE(Counting);

void uneven_inputs(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  for (const bool view : {false, true}) {
    Counting net;
    DistributedDataParallel model{net, group, {.gradient_as_bucket_view = view}};
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    {
      ddp::Join join({&model->joinable()});
      for (int batch = 0; batch <= group.rank(); ++batch) {
        optimizer.zero_grad();
        model(ranks.own).backward();
        double sum = 0;
        for (int rank = batch; rank < ranks.size; ++rank) sum += rank + 1;
        expect(net->p.grad(), sum / ranks.size, "ranks that have run out count as zeros");
        optimizer.step();
      }
      join.finish();
    }
    double sum = 0;
    for (int rank = 0; rank < ranks.size; ++rank) sum += (rank + 1) * (rank + 1);
    expect(net->p, 1 - sum / ranks.size, "the last rank's parameters");
    expect(net->passes, ranks.size, "the last rank's buffers");
  }
}

void log_and_trace(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  ddp::torch::DistributedDataParallelOptions options{.broadcast_buffers = false};
  options.log.find_straggler = true;
  DistributedDataParallel model{Scaled{}, group, options};
  model->trace(2);
  for (int step = 0; step < 2; ++step) {
    const auto loss = model(ranks.own);
    {
      torch::NoGradGuard evaluates;  // does not count as a pass of a step
      model(ranks.own);
    }
    loss.backward();
  }
  const ddp::DdpLog log = model->log();
  check(log.iteration == 2 && log.num_parameter_tensors == 2, "the log is of the last step");
  check(log.module_name.find("ScaledImpl") != std::string::npos, "the log names the module: " + log.module_name);
  check(!log.broadcast_buffers, "the log knows that buffers are left alone");
  check(log.forward_compute_time > 0 && log.backward_compute_time > 0, "the log has times");
  check(group.size() == 1 || log.straggler_rank >= 0, "the log names a rank that the others waited for");
  const std::string trace = model->trace_json();
  check(group.size() == 1 || trace.find("\"exchange\"") != std::string::npos, "the trace has buckets: " + trace);
}

void mistakes(const ddp::ProcessGroup& group) {
  const Ranks ranks(group);
  Scaled net;
  DistributedDataParallel model{net, group};
  error_of("went around DistributedDataParallel", [&] { net(ranks.own).backward(); });
  model->zero_grad();
  const auto done = model(ranks.own);  // lives on, but its backward pass has ended
  done.backward();
  error_of("went around DistributedDataParallel", [&] { net(ranks.own).backward(); });
  model->zero_grad();
  if (group.size() > 1) {  // a single rank needs no gradients of others
    const bool last = group.rank() == group.size() - 1;
    const auto missing = [&] { model(ranks.own, !last).backward(); };
    check(error_of("q", missing) == ddp::ErrorCode::invalid_argument, "all ranks hear of a missing gradient");
    model->zero_grad();
    check(error_of("p",
                   [&] {
                     DistributedDataParallel{Scaled(last ? torch::kDouble : torch::kFloat), group};
                   }) == ddp::ErrorCode::mismatch,
          "all ranks hear of another element type");
    const auto wrap = [&] {
      Scaled other;
      other->register_buffer("mean", torch::zeros({last ? 2 : 3}));
      DistributedDataParallel{other, group};
    };
    check(error_of("buffer 0 differs", wrap) == ddp::ErrorCode::mismatch, "all ranks hear of another buffer");
  }
  model(ranks.own).backward();
  expect(net->q.grad(), ranks.mean, "the step after a mistake");

  net->q.set_data(net->q.clone());  // as torch::load does
  error_of("parameter 'q' has moved", [&] { model->joinable(); });
}

}  // namespace

void modules_of_all_kinds(ddp::ProcessGroup group) {
  element_types_layouts_and_buffers(group);
  names_and_ignored_ones(group);
  passes_of_all_kinds(group);
  two_passes_with_a_strided_buffer(group);
  several_outputs(group);
  kept_losses(group);
  frozen_modules(group);
  changed_modules(group);
  uneven_inputs(group);
  log_and_trace(group);
  mistakes(group);
}

}  // namespace torch_test
