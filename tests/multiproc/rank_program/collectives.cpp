// Sub-groups, asynchronous order, and invalid calls.
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/binding.hpp>

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
  // each operation needs the previous result: only the right order gives the last value
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
    // a later collective sees what they have received
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

// Every collective, element type and reduction, compared with a plain loop over all ranks' contributions.

namespace {

constexpr std::array kTypes{DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int8,
                            DType::int32,   DType::int64,   DType::uint8,   DType::boolean};
constexpr std::array kOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};
constexpr std::array<std::size_t, 4> kCounts{0, 1, 7, 1000};
// more than a rank's share of memory holds at once, and not a multiple of any segment
constexpr std::size_t kLargeCount = 270'001;

/// A tensor with its memory, whose elements are read and written as doubles.
class Buffer {
 public:
  Buffer(DType dtype, std::size_t count) : dtype_(dtype), count_(count), bytes_(count * size_of(dtype) + 1) {}
  TensorView view() { return {bytes_.data(), dtype_, {static_cast<std::int64_t>(count_)}}; }
  std::size_t count() const { return count_; }
  DType dtype() const { return dtype_; }

  double get(std::size_t i) const {
    switch (dtype_) {
      case DType::float32: return read<float>(i);
      case DType::float64: return read<double>(i);
      case DType::float16: return to_float(read<Half>(i));
      case DType::bfloat16: return to_float(read<BFloat16>(i));
      case DType::int8: return read<std::int8_t>(i);
      case DType::int32: return read<std::int32_t>(i);
      case DType::int64: return static_cast<double>(read<std::int64_t>(i));
      default: return read<std::uint8_t>(i);
    }
  }
  void set(std::size_t i, double value) {
    switch (dtype_) {
      case DType::float32: return write(i, static_cast<float>(value));
      case DType::float64: return write(i, value);
      case DType::float16: return write(i, to_half(static_cast<float>(value)));
      case DType::bfloat16: return write(i, to_bfloat16(static_cast<float>(value)));
      case DType::int8: return write(i, static_cast<std::int8_t>(value));
      case DType::int32: return write(i, static_cast<std::int32_t>(value));
      case DType::int64: return write(i, static_cast<std::int64_t>(value));
      default: return write(i, static_cast<std::uint8_t>(value));
    }
  }

 private:
  template <class T>
  T read(std::size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void write(std::size_t i, T value) {
    std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
  }
  DType dtype_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

/// What rank contributes as element i: 1 to 3, so that sums and products of a few ranks are exact in every type.
double contribution(DType dtype, int rank, std::size_t i) {
  const auto mixed = static_cast<std::size_t>(rank) * 7 + i * 5 + i / 13;
  return dtype == DType::boolean ? static_cast<double>(mixed % 2) : static_cast<double>(1 + mixed % 3);
}

Buffer filled(DType dtype, int rank, std::size_t count) {
  Buffer buffer(dtype, count);
  for (std::size_t i = 0; i < count; ++i) buffer.set(i, contribution(dtype, rank, i));
  return buffer;
}

double expected(DType dtype, ReduceOp op, int ranks, std::size_t i) {
  double result = contribution(dtype, 0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = contribution(dtype, rank, i);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: result += value; break;
      case ReduceOp::min: result = std::min(result, value); break;
      case ReduceOp::max: result = std::max(result, value); break;
      case ReduceOp::product: result *= value; break;
    }
  }
  if (dtype == DType::boolean) return result > 0 ? 1 : 0;
  if (op != ReduceOp::avg) return result;
  const bool integer = dtype == DType::int8 || dtype == DType::int32 || dtype == DType::int64 || dtype == DType::uint8;
  return integer ? std::trunc(result / ranks) : result / ranks;
}

/// All but averages are exact. Averages of float16 and bfloat16 are divided before the sum: each of at most 8 terms of
/// at most 3/W is rounded to 11 or 8 bits, and so is each partial sum.
double tolerance(DType dtype, ReduceOp op) {
  if (op != ReduceOp::avg) return 0;
  switch (dtype) {
    case DType::float32: return 1e-6;
    case DType::float64: return 1e-15;
    case DType::float16: return 8 * 3 * 0x1p-11;
    case DType::bfloat16: return 8 * 3 * 0x1p-8;
    default: return 0;
  }
}

void compare(const Buffer& buffer, const std::string& what, double limit,
             const std::function<double(std::size_t)>& reference) {
  for (std::size_t i = 0; i < buffer.count(); ++i) {
    const double wanted = reference(i);
    if (std::abs(buffer.get(i) - wanted) <= limit) continue;
    check(false, fmt::format("{} of {} x {}: element {} is {}, not {}", what, to_string(buffer.dtype()), buffer.count(),
                             i, buffer.get(i), wanted));
  }
}

void check_reductions(ProcessGroup& group, DType dtype, std::size_t count) {
  const int ranks = group.size();
  const int root = ranks - 1;
  for (const ReduceOp op : kOps) {
    if (dtype == DType::boolean && op == ReduceOp::avg) continue;
    const double limit = tolerance(dtype, op);
    const std::string name(to_string(op));
    Buffer all = filled(dtype, group.rank(), count);
    group.all_reduce(all.view(), op).wait();
    compare(all, "all_reduce " + name, limit, [&](std::size_t i) { return expected(dtype, op, ranks, i); });

    Buffer one = filled(dtype, group.rank(), count);
    group.reduce(one.view(), root, op).wait();
    if (group.rank() == root) {
      compare(one, "reduce " + name, limit, [&](std::size_t i) { return expected(dtype, op, ranks, i); });
    }
    Buffer parts = filled(dtype, group.rank(), count * static_cast<std::size_t>(ranks));
    Buffer part(dtype, count);
    group.reduce_scatter(parts.view(), part.view(), op).wait();
    const std::size_t first = static_cast<std::size_t>(group.rank()) * count;
    compare(part, "reduce_scatter " + name, limit,
            [&](std::size_t i) { return expected(dtype, op, ranks, first + i); });
  }
}

void check_movements(ProcessGroup& group, DType dtype, std::size_t count) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  const int root = group.size() / 2;

  Buffer sent = filled(dtype, group.rank(), count);
  group.broadcast(sent.view(), root).wait();
  compare(sent, "broadcast", 0, [&](std::size_t i) { return contribution(dtype, root, i); });

  const Buffer own = filled(dtype, group.rank(), count);
  Buffer input = own;
  Buffer all(dtype, count * ranks);
  const auto by_rank = [&](std::size_t i) { return contribution(dtype, static_cast<int>(i / count), i % count); };
  group.all_gather(input.view(), all.view()).wait();
  compare(all, "all_gather", 0, by_rank);
  Buffer gathered(dtype, group.rank() == root ? count * ranks : 0);
  group.gather(input.view(), gathered.view(), root).wait();
  compare(gathered, "gather", 0, by_rank);

  std::vector<std::size_t> counts;
  std::vector<std::pair<int, std::size_t>> sources;
  for (std::size_t other = 0; other < ranks; ++other) {
    counts.push_back(other == 1 ? 0 : count / (other + 1));  // one rank contributes nothing
    for (std::size_t i = 0; i < counts.back(); ++i) sources.emplace_back(static_cast<int>(other), i);
  }
  Buffer uneven = filled(dtype, group.rank(), counts[rank]);
  Buffer joined(dtype, sources.size());
  group.all_gather_v(uneven.view(), joined.view(), counts).wait();
  compare(joined, "all_gather_v", 0,
          [&](std::size_t i) { return contribution(dtype, sources[i].first, sources[i].second); });

  Buffer parts = filled(dtype, group.rank(), count * ranks);
  Buffer part(dtype, count);
  group.scatter(parts.view(), part.view(), root).wait();
  compare(part, "scatter", 0, [&](std::size_t i) { return contribution(dtype, root, rank * count + i); });

  Buffer swapped(dtype, count * ranks);
  group.all_to_all(parts.view(), swapped.view()).wait();
  compare(swapped, "all_to_all", 0,
          [&](std::size_t i) { return contribution(dtype, static_cast<int>(i / count), rank * count + i % count); });

  if (ranks > 1) {
    const int next = static_cast<int>((rank + 1) % ranks);
    const int previous = static_cast<int>((rank + ranks - 1) % ranks);
    Buffer received(dtype, count);
    const Work sending = group.send(input.view(), next, 5);
    const Work receiving = group.recv(received.view(), previous, 5);
    receiving.wait();
    sending.wait();
    compare(received, "recv", 0, [&](std::size_t i) { return contribution(dtype, previous, i); });
  }
}

}  // namespace

void run_collectives(World& world) {
  ProcessGroup group = make_process_group(world);
  for (const DType dtype : kTypes) {
    for (const std::size_t count : kCounts) {
      check_reductions(group, dtype, count);
      check_movements(group, dtype, count);
    }
  }
  check_reductions(group, DType::float32, kLargeCount);
  check_movements(group, DType::float32, kLargeCount);
  group.barrier().wait();
}

// What World and its store report: facts for tests to compare with the launcher's, and values of many sizes.

void print_world(World& world) {
  std::vector<int> node_of;
  std::vector<int> local_rank_of;
  std::vector<std::string> node_hosts;
  for (int node = 0; node < world.num_nodes(); ++node) {
    node_hosts.push_back(world.hostname(world.ranks_on_node(node).front()));
  }
  for (int rank = 0; rank < world.world_size(); ++rank) {
    node_of.push_back(world.node_of(rank));
    local_rank_of.push_back(world.local_rank_of(rank));
    check(world.hostname(rank) == node_hosts.at(static_cast<std::size_t>(world.node_of(rank))),
          "ranks of one node have different hosts");
  }
  const auto& local = world.ranks_on_node(world.node_rank());
  check(local.at(static_cast<std::size_t>(world.local_rank())) == world.rank(), "the local ranks are not in order");
  check(static_cast<int>(local.size()) == world.local_world_size(), "the local size is not that of the node");
  fmt::print(
      "WORLD {{\"rank\": {}, \"world_size\": {}, \"local_rank\": {}, \"local_world_size\": {}, \"node_rank\": {}, "
      "\"num_nodes\": {}, \"node_of\": [{}], \"local_rank_of\": [{}], \"node_hosts\": [\"{}\"], \"source\": \"{}\", "
      "\"interface\": \"{}\", \"address\": \"{}\", \"reason\": \"{}\"}}\n",
      world.rank(), world.world_size(), world.local_rank(), world.local_world_size(), world.node_rank(),
      world.num_nodes(), fmt::join(node_of, ","), fmt::join(local_rank_of, ","), fmt::join(node_hosts, "\",\""),
      to_string(world.source()), world.interface_name(), world.interface_address(), world.source_reason());
  // Slurm 22.05 ends a step if its nodes' PMIx servers still connect to one that has ended with its last rank.
  world.key_value_store().fence(Deadline::after(std::chrono::seconds(30)));
}

void print_binding(World& world) {
  const Binding now = Binding::current();
  const auto& placement = world.placement();
  check(!placement || placement->local_rank == world.local_rank(), "the placement is another rank's");
  check(!placement || placement->cpus.contains(now.cpus), "this rank is not bound as placed");
  for (const EnvironmentSetting& setting : world.settings()) {
    check(std::getenv(setting.name.c_str()) == nullptr, "World::init changed the environment");
  }
  world.export_settings();
  for (const EnvironmentSetting& setting : world.settings()) {
    const char* value = std::getenv(setting.name.c_str());
    check(value != nullptr && value == setting.value, "a setting was not exported");
  }
  fmt::print("BINDING rank={} cpus={} placed={}\n", world.rank(), now.cpus.to_string(),
             placement ? placement->cpus.to_string() : "no");
}

void make_traffic(World& world, Arguments arguments) {
  check(arguments.size() == 1, "traffic MIB");
  std::vector<float> values(std::stoul(arguments[0]) * (1024 * 1024 / sizeof(float)), 1.0F);
  make_process_group(world).all_reduce(values).wait();
  check(values.back() == static_cast<float>(world.world_size()), "the sum is wrong");
}

void run_kvs(World& world) {
  KeyValueStore& store = world.key_value_store();
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  const auto value = [](int rank, std::size_t size) {
    Bytes bytes(size);  // every byte value occurs, ';' and '\0' included
    for (std::size_t i = 0; i < size; ++i)
      bytes[i] = static_cast<std::byte>((i + static_cast<std::size_t>(rank)) % 256);
    return bytes;
  };
  for (const std::size_t size : {0U, 1U, 1023U, 1024U, 70'000U}) {
    store.put(fmt::format("size.{}", size), value(world.rank(), size));
  }
  // as large as a large node's topology
  constexpr std::size_t kNodeValueBytes = 150'000;
  if (world.local_rank() == 0) store.put_on_node("for.the.node", value(world.rank(), kNodeValueBytes));
  store.fence(deadline);
  const int leader = world.ranks_on_node(world.node_rank()).front();
  check(store.get_on_node(leader, "for.the.node", deadline) == value(leader, kNodeValueBytes),
        "the value for the node came back changed");
  for (int rank = 0; rank < world.world_size(); ++rank) {
    for (const std::size_t size : {0U, 1U, 1023U, 1024U, 70'000U}) {
      check(store.get(rank, fmt::format("size.{}", size), deadline) == value(rank, size),
            fmt::format("the value of {} bytes of rank {} came back changed", size, rank));
    }
  }
  try {
    store.get(world.world_size() - 1, "never.put", deadline);
    check(false, "a key that was never put was found");
  } catch (const Error& error) {
    check(error.code() == ErrorCode::not_found, fmt::format("a missing key gives: {}", error.what()));
  }
  // a second round sees the second values
  store.put("round", value(world.rank(), 2));
  store.fence(deadline);
  check(store.get(0, "round", deadline) == value(0, 2), "the second fence lost a value");
}

void make_fewer_stores(World& world) {
  const int last = world.world_size() - 1;
  if (world.rank() == last) {
    world.key_value_store().fence(Deadline::after(std::chrono::seconds(60)));
    return;
  }
  try {
    World second = World::init();
    second.hostname(last);
    check(false, "a second World was made without the last rank");
  } catch (const Error& error) {
    check(error.code() == ErrorCode::not_found && error.ranks() == std::vector{last},
          fmt::format("a rank with fewer stores gives: {}", error.what()));
  }
}

}  // namespace ddp::test
