// Sub-groups, asynchronous order, and calls that must be refused.
#include <numeric>

#include <fmt/format.h>

#include "rank_program/scenario.hpp"

namespace ddp::test {
namespace {

template <class Function>
void expect_error(ErrorCode code, const std::string& what, Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    check(error.code() == code, fmt::format("{} gives another error: {}", what, error.what()));
    return;
  }
  check(false, fmt::format("{} was accepted", what));
}

}  // namespace

void run_subgroups(World& world) {
  ProcessGroup all = make_process_group(world);
  const int size = all.size();
  std::vector<int> even;
  std::vector<int> reversed;
  for (int rank = 0; rank < size; ++rank) {
    if (rank % 2 == 0) even.push_back(rank);
    reversed.insert(reversed.begin(), rank);
  }
  auto evens = all.new_group(even);
  check(evens.has_value() == (world.rank() % 2 == 0), "membership is wrong");
  if (evens) {
    check(evens->global_ranks() == even && evens->rank() == world.rank() / 2, "ranks in the group are wrong");
    std::vector<float> sum{static_cast<float>(world.rank())};
    evens->all_reduce(sum).wait();
    check(sum[0] == static_cast<float>(std::accumulate(even.begin(), even.end(), 0)), "the sum among some is wrong");
  }
  auto backwards = all.new_group(reversed);
  check(backwards && backwards->rank() == size - 1 - world.rank(), "the given order is not kept");
  std::vector<std::int32_t> from_root{world.rank()};
  backwards->broadcast(from_root, 0).wait();
  check(from_root[0] == size - 1, "root is not the first of the list");
  // both groups and their parent work side by side
  std::vector<double> both{1.0};
  std::vector<double> parent{1.0};
  const Work first = backwards->all_reduce(both);
  const Work second = all.all_reduce(parent);
  first.wait();
  second.wait();
  check(both[0] == size && parent[0] == size, "groups disturb each other");

  const std::vector<int> twice{0, 0};
  expect_error(ErrorCode::invalid_argument, "a rank twice", [&] { all.new_group(twice); });
  const std::vector<int> outside{size};
  expect_error(ErrorCode::invalid_argument, "a rank outside", [&] { all.new_group(outside); });
  if (size > 1) {
    const std::vector<int> own{world.rank()};
    expect_error(ErrorCode::mismatch, "a different list on every rank", [&] { all.new_group(own); });
  }
}

void run_ordering(World& world) {
  ProcessGroup group = make_process_group(world);
  const auto size = static_cast<std::size_t>(group.size());
  // each operation needs the result of the one before: only in order does the last value come out right
  std::vector<std::int64_t> value{1};
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) works.push_back(group.all_reduce(value));
  for (const Work& work : works) work.wait();
  std::int64_t wanted = 1;
  for (int i = 0; i < 20; ++i) wanted *= static_cast<std::int64_t>(size);
  check(value[0] == wanted, "operations did not run in issue order");
  check(works.back().done() && !works.back().error() && works.back().finished_at(), "a finished work says otherwise");

  if (size > 1) {
    // every rank sends to all before it receives from any: sends must not wait for each other
    std::vector<std::vector<std::int32_t>> outgoing(size);
    std::vector<std::vector<std::int32_t>> incoming(size);
    works.clear();
    for (std::size_t peer = 0; peer < size; ++peer) {
      if (static_cast<int>(peer) == group.rank()) continue;
      outgoing[peer].assign(50'000, group.rank() * 100 + static_cast<int>(peer));
      works.push_back(group.send(outgoing[peer], static_cast<int>(peer)));
    }
    for (std::size_t peer = 0; peer < size; ++peer) {
      if (static_cast<int>(peer) == group.rank()) continue;
      incoming[peer].assign(50'000, -1);
      works.push_back(group.recv(incoming[peer], static_cast<int>(peer)));
    }
    // a collective behind them sees what they have received
    std::vector<std::int32_t> sum{0};
    works.push_back(group.barrier());
    for (const Work& work : works) work.wait();
    for (std::size_t peer = 0; peer < size; ++peer) {
      if (static_cast<int>(peer) == group.rank()) continue;
      check(incoming[peer].back() == static_cast<int>(peer) * 100 + group.rank(), "a message came to the wrong rank");
    }
    // messages with different tags do not mix, whatever the order of the receives
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    std::vector<std::int8_t> one{1};
    std::vector<std::int8_t> two{2};
    std::vector<std::int8_t> got_one{0};
    std::vector<std::int8_t> got_two{0};
    const std::vector<Work> tagged{group.send(one, next, 1), group.send(two, next, 2), group.recv(got_two, previous, 2),
                                   group.recv(got_one, previous, 1)};
    for (const Work& work : tagged) work.wait();
    check(got_one[0] == 1 && got_two[0] == 2, "tags were mixed up");
  }
  std::vector<float> late{1};
  const Work last = group.all_reduce(late, ReduceOp::sum, Deadline::after(std::chrono::seconds(30)));
  last.wait(Deadline::after(std::chrono::seconds(30)));
}

void run_misuse(World& world) {
  ProcessGroup group = make_process_group(world);
  std::vector<float> floats(4);
  std::vector<double> doubles(4 * static_cast<std::size_t>(group.size()));
  std::vector<float> wrong_size(3);
  bool flags[2] = {true, false};
  const auto refused = [](const std::string& what, auto&& function) {
    expect_error(ErrorCode::invalid_argument, what, function);
  };
  refused("a root outside", [&] { (void)group.broadcast(floats, group.size()); });
  refused("a negative root", [&] { (void)group.broadcast(floats, -1); });
  refused("an output of another type", [&] { (void)group.all_gather(floats, doubles); });
  refused("an output of the wrong size", [&] { (void)group.reduce_scatter(floats, wrong_size); });
  refused("an average of booleans", [&] { (void)group.all_reduce(std::span(flags), ReduceOp::avg); });
  refused("sending to oneself", [&] { (void)group.send(floats, group.rank()); });
  refused("too few counts", [&] { (void)group.all_gather_v(floats, floats, {}); });
  refused("a tensor on a GPU", [&] {
    (void)group.all_reduce(TensorView{floats.data(), DType::float32, {4}, {DeviceType::cuda, 0}});
  });
  refused("another backend for the same group", [&] { (void)make_process_group(world, "nccl"); });
  for (const char* const name : {"host", "cpu", "gloo", "auto"}) {
    check(make_process_group(world, name).backend() == "host", fmt::format("{} is another backend", name));
  }
  // nothing of that was sent: the group still works
  std::vector<float> ones(4, 1.0F);
  group.all_reduce(ones).wait();
  check(ones[3] == static_cast<float>(group.size()), "a refused call has left something behind");
}

}  // namespace ddp::test
