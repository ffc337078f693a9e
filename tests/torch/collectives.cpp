// Collectives over tensors, and through c10d's Backend.
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <string>
#include <vector>

#include <ddp/torch/c10d_backend.hpp>
#include <ddp/torch/process_group.hpp>

#include "scenarios.hpp"

namespace torch_test {
namespace {

void expect(const torch::Tensor& tensor, const torch::Tensor& expected, const std::string& what) {
  check(tensor.sizes() == expected.sizes() && torch::equal(tensor, expected.to(tensor.scalar_type())), what);
}

torch::Tensor filled(double value, torch::ScalarType type = torch::kFloat) { return torch::full({2, 3}, value, type); }

/// What PyTorch's own DistributedDataParallel is made of: through c10d's dispatcher to our groups.
void averages_of_pytorchs_reducer(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const int rank = backend->getRank(), size = backend->getSize();
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  std::vector<torch::Tensor> tensors{filled(rank)};
  group->broadcast(tensors, {.rootRank = size - 1})->wait();
  expect(tensors[0], filled(size - 1), "broadcast through the dispatcher");
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 13  // whose constructor this is
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < 3; ++i) parameters.push_back(torch::ones({4 + i}).requires_grad_());
  c10d::Reducer reducer(parameters, {{2}, {1, 0}}, group, {false, false, false}, 1 << 20,
                        /*find_unused_parameters=*/true,
                        /*gradient_as_bucket_view=*/false, {}, 1 << 20, /*skip_all_reduce_unused_params=*/false,
                        /*use_python_reducer=*/false, {});
  for (int step = 0; step < 3; ++step) {
    for (auto& parameter : parameters) parameter.mutable_grad().reset();
    reducer.prepare_for_forward();
    torch::Tensor output = (parameters[0] * (rank + 1)).sum() + (parameters[2] * (rank + 1)).sum();
    if (rank == 0) output = output + parameters[1].sum();  // the others do not use it
    reducer.prepare_for_backward({output});
    output.backward();
    for (const int i : {0, 2})
      expect(parameters[i].grad(), torch::full({4 + i}, (size + 1) / 2.0), "averaged by c10d::Reducer");
    check(torch::allclose(parameters[1].grad(), torch::full({5}, 1.0 / size)), "used on one rank");
  }
#endif
}

}  // namespace

void tensor_collectives(ddp::ProcessGroup plain) {
  ddp::torch::ProcessGroup group(plain);
  const int rank = group.rank(), size = group.size(), next = (rank + 1) % size, last = (rank + size - 1) % size;
  const double sum = size * (size + 1) / 2.0;
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kInt, torch::kLong,
                          torch::kComplexFloat}) {
    auto tensor = filled(rank + 1, type);
    group.all_reduce(tensor).wait();
    expect(tensor, filled(sum, type), std::string{"all_reduce of "} + torch::toString(type));
  }
  // elements would meet others of a rank whose memory is in another order
  const auto image = torch::ones({1, 2, 3, 4}).contiguous(torch::MemoryFormat::ChannelsLast);
  error_of("not contiguous", [&] { group.all_reduce(image, ddp::ReduceOp::avg).wait(); });
  error_of("not contiguous", [&] { group.broadcast(image, 0).wait(); });

  auto small = filled(rank, torch::kShort);  // moved as bytes
  group.broadcast(small, size - 1).wait();
  expect(small, filled(size - 1), "broadcast");
  auto reduced = filled(rank + 1);
  group.reduce(reduced, 0, ddp::ReduceOp::max).wait();
  if (rank == 0) expect(reduced, filled(size), "reduce");

  const auto all = torch::arange(size).to(torch::kFloat);
  const auto own = torch::full({1}, static_cast<float>(rank));
  auto output = torch::empty({size});
  group.all_gather(own, output).wait();
  expect(output, all, "all_gather");
  output.zero_();
  group.gather(own, rank == 0 ? output : torch::Tensor{}, 0).wait();
  if (rank == 0) expect(output, all, "gather");
  auto part = torch::empty({1});
  group.scatter(rank == 0 ? all : torch::Tensor{}, part, 0).wait();
  expect(part, own, "scatter");
  group.reduce_scatter(all, part).wait();
  expect(part, own * size, "reduce_scatter");
  group.all_to_all(own.repeat({size}), output).wait();
  expect(output, all, "all_to_all");
  if (size > 1) {
    auto sent = group.send(own, next, 3);
    group.recv(part, last, 3).wait();
    sent.wait();
    expect(part, torch::full({1}, static_cast<float>(last)), "send, recv");
  }
  group.barrier(ddp::Deadline::after(std::chrono::seconds(60))).wait();

  // the operation owns its tensors
  auto work = group.all_reduce(torch::ones({100'000}));
  work.wait();

  auto narrow = filled(rank + 1, torch::kFloat8_e4m3fn);
  group.all_reduce(narrow).wait();
  expect(narrow.to(torch::kFloat), filled(sum), "all_reduce of float8");
  error_of("complex numbers have no max",
           [&] { group.all_reduce(filled(1, torch::kComplexFloat), ddp::ReduceOp::max).wait(); });
  error_of("not contiguous", [&] { group.all_reduce(torch::ones({4, 4}).slice(1, 0, 2)).wait(); });
  error_of("not contiguous", [&] { group.all_gather(torch::ones({4, 4}).t(), torch::ones({16 * size})).wait(); });
  error_of("does not know", [&] { group.all_reduce(filled(1, torch::kShort)).wait(); });
  error_of("not dense", [&] { group.all_reduce(torch::ones({2, 2}).to_sparse()).wait(); });
  error_of("neither in the memory of the host", [&] { group.all_reduce(torch::empty({2}, torch::kMeta)).wait(); });
}

void c10d_collectives(ddp::ProcessGroup group) {
  const auto ours = c10::make_intrusive<ddp::torch::C10dBackend>(group);
  const c10::intrusive_ptr<c10d::Backend> backend = ours;
  const int rank = backend->getRank(), size = backend->getSize();
  const double sum = size * (size + 1) / 2.0;
  using Tensors = std::vector<torch::Tensor>;
  using Lists = std::vector<Tensors>;
  check(rank == group.rank() && size == group.size() && backend->getBackendName() == "ddp", "who it is");
  const auto parts = [&](double first, double step) {
    Tensors tensors;
    for (int i = 0; i < size; ++i) tensors.push_back(filled(first + step * i));
    return tensors;
  };
  const auto expect_all = [&](const Tensors& tensors, const Tensors& expected, const std::string& what) {
    for (int i = 0; i < size; ++i) expect(tensors[i], expected[i], what);
  };

  Tensors one{filled(rank + 1)};
  const auto work = backend->allreduce(one);
  auto averaged = work->getFuture()->then(
      [size](c10::ivalue::Future& future) { return c10::IValue(future.value().toTensorVector()[0] / size); },
      c10::TensorType::get());
  check(work->wait() && work->isCompleted() && work->isSuccess() && !work->exception(), "allreduce ends");
  expect(one[0], filled(sum), "allreduce");
  averaged->wait();
  expect(averaged->value().toTensor(), filled(sum / size), "what was chained to its future");
  expect(work->result()[0], one[0], "its result");

  Tensors flags{torch::full({2}, rank == 0, torch::kBool)};
  backend->allreduce(flags, {.reduceOp = c10d::ReduceOp::BOR})->wait();
  expect(flags[0], torch::ones({2}), "or of booleans");
  Tensors two{filled(rank + 1), filled(10 * (rank + 1), torch::kDouble)};
  backend->allreduce_coalesced(two)->wait();
  expect(two[0], filled(sum), "allreduce_coalesced");
  expect(two[1], filled(10 * sum), "allreduce_coalesced");
  one[0].fill_(rank);
  backend->broadcast(one, {.rootRank = size - 1})->wait();
  expect(one[0], filled(size - 1), "broadcast");
  one[0].fill_(rank + 1);
  backend->reduce(one, {.rootRank = 0})->wait();
  if (rank == 0) expect(one[0], filled(sum), "reduce");

  // on rank 0 in another order in memory
  const auto laid = [&](int scale) {
    const auto rows = torch::arange(6.0F).view({2, 3}) * scale;
    return Tensors{rank == 0 ? rows.t().contiguous().t() : rows};
  };
  one = laid(rank + 1);
  backend->allreduce(one)->wait();
  expect(one[0], torch::arange(6.0F).view({2, 3}) * sum, "allreduce of other layouts");
  for (const int root : {0, size - 1}) {
    one = laid(rank + 1);
    backend->broadcast(one, {.rootRank = root})->wait();
    expect(one[0], torch::arange(6.0F).view({2, 3}) * (root + 1), "broadcast of other layouts");
    one = laid(rank + 1);
    backend->reduce(one, {.rootRank = root})->wait();
    if (rank == root) expect(one[0], torch::arange(6.0F).view({2, 3}) * sum, "reduce of other layouts");
  }
  two = {laid(rank + 1)[0], laid(1)[0]};
  backend->allreduce_coalesced(two)->wait();
  expect(two[0], torch::arange(6.0F).view({2, 3}) * sum, "allreduce_coalesced of other layouts");
  expect(two[1], torch::arange(6.0F).view({2, 3}) * size, "allreduce_coalesced of other layouts");

  one = {filled(rank).t().contiguous().t()};  // not contiguous
  Lists lists{parts(-1, 0)};
  backend->allgather(lists, one)->wait();
  expect_all(lists[0], parts(0, 1), "allgather");
  one = {filled(rank)};
  auto flat = torch::empty({size * 2, 3});
  backend->_allgather_base(flat, one[0])->wait();
  expect(flat, torch::cat(parts(0, 1)), "_allgather_base");
  Tensors inputs{filled(rank), filled(rank + 100)}, outputs{torch::empty({size * 2, 3}), torch::empty({size * 2, 3})};
  backend->allgather_into_tensor_coalesced(outputs, inputs)->wait();
  expect(outputs[1], torch::cat(parts(100, 1)), "allgather_into_tensor_coalesced");
  Lists by_rank;
  for (int i = 0; i < size; ++i) by_rank.push_back({filled(-1), filled(-1)});
  backend->allgather_coalesced(by_rank, inputs)->wait();
  for (int i = 0; i < size; ++i) expect(by_rank[i][1], filled(100 + i), "allgather_coalesced");

  lists = rank == 0 ? Lists{parts(-1, 0)} : Lists{};
  backend->gather(lists, one, {.rootRank = 0})->wait();
  if (rank == 0) expect_all(lists[0], parts(0, 1), "gather");
  lists = rank == 0 ? Lists{parts(5, 1)} : Lists{};
  backend->scatter(one, lists, {.rootRank = 0})->wait();
  expect(one[0], filled(5 + rank), "scatter");
  lists = {parts(rank, 10)};
  backend->reduce_scatter(one, lists)->wait();
  expect(one[0], filled(sum - size + 10 * rank * size), "reduce_scatter");
  flat = torch::cat(parts(rank, 10));
  backend->_reduce_scatter_base(one[0], flat)->wait();
  expect(one[0], filled(sum - size + 10 * rank * size), "_reduce_scatter_base");
  Tensors many{flat};
  backend->reduce_scatter_tensor_coalesced(one, many)->wait();
  expect(one[0], filled(sum - size + 10 * rank * size), "reduce_scatter_tensor_coalesced");

  std::vector<std::int64_t> none, to, from;
  flat = torch::cat(parts(10 * rank, 1));
  auto received = torch::empty_like(flat);
  backend->alltoall_base(received, flat, none, none)->wait();
  expect(received, torch::cat(parts(rank, 10)), "alltoall_base");
  std::int64_t rows = 0;
  for (int i = 0; i < size; ++i) {  // rank a sends a * b rows to rank b
    to.push_back(rank * i);
    from.push_back(i * rank);
    rows += rank * i;
  }
  const auto uneven = torch::full({rows, 2}, static_cast<float>(rank));
  auto uneven_input = uneven, uneven_output = torch::empty({rows, 2});
  backend->alltoall_base(uneven_output, uneven_input, from, to)->wait();
  for (std::int64_t i = 0, row = 0; i < size; row += from[i++]) {
    expect(uneven_output.narrow(0, row, from[i]), torch::full({from[i], 2}, static_cast<float>(i)), "uneven alltoall");
  }
  if (size > 1) {
    auto undealt = torch::empty({size + 1, 2});
    error_of(std::to_string(size + 1) + " rows of the input cannot be dealt",
             [&] { backend->alltoall_base(uneven_output, undealt, from, none); });
    error_of("rows of the output cannot be dealt", [&] { backend->alltoall_base(undealt, undealt, none, none); });
  }
  Tensors received_parts = parts(-1, 0), sent_parts = parts(10 * rank, 1);
  backend->alltoall(received_parts, sent_parts)->wait();
  expect_all(received_parts, parts(rank, 10), "alltoall");

  if (size > 1) {
    Tensors awaited{filled(-1)}, message{filled(77)};
    const auto receiving = rank == 0 ? backend->recv(awaited, 1, 0) : nullptr;
    backend->alltoall(received_parts, sent_parts)->wait();
    expect_all(received_parts, parts(rank, 10), "alltoall beside a recv");
    if (rank == 1) backend->send(message, 0, 0)->wait();
    if (receiving) receiving->wait();
    if (rank == 0) expect(awaited[0], filled(77), "recv beside an alltoall");
    Tensors sent{filled(rank)}, got{filled(-1)};
    const auto sending = backend->send(sent, (rank + 1) % size, 5);
    backend->recv(got, (rank + size - 1) % size, 5)->wait();
    sending->wait();
    expect(got[0], filled((rank + size - 1) % size), "send, recv");
    Tensors late{filled(7)}, go{filled(1)};
    if (rank == 0) {
      const auto waiting = backend->recv(late, 1, 6);
      error_of("", [&] { waiting->wait(std::chrono::milliseconds(50)); });
      check(!waiting->isCompleted(), "the operation goes on");
      backend->send(go, 1, 7)->wait();
      check(waiting->wait(), "it ends");
    } else if (rank == 1) {
      backend->recv(go, 0, 7)->wait();
      backend->send(late, 0, 6)->wait();
    }
  }
  averages_of_pytorchs_reducer(backend);
  backend->barrier()->wait();
  backend->monitoredBarrier({});
  check(backend->getSequenceNumberForGroup() > 10, "operations are counted");
  error_of("no such c10d::ReduceOp", [&] { backend->allreduce(one, {.reduceOp = c10d::ReduceOp::BXOR}); });
  error_of("give one tensor", [&] { backend->allreduce(two); });
  backend->shutdown();
  error_of("shut down", [&] { backend->barrier(); });
}

}  // namespace torch_test
