#include "selftest/checks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/binding.hpp>
#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "base/torchrun_environment.hpp"

namespace ddp::selftest {
namespace {

constexpr std::string_view kKey = "ddp-selftest.value";  // keys with "ddp." are libddp's
constexpr std::size_t kValueBytes = 1024;
constexpr int kMostRanksToReadAll = 64;
constexpr std::size_t kElements = std::size_t{1} << 18;  // 1 MiB of float32: exceeds socket buffers
constexpr std::size_t kLargestExchangeElements = std::size_t{1} << 21;
constexpr std::size_t kMostElementsPerPair = 8192;

/// A wrong result. @param from the ranks it came from.
[[noreturn]] void wrong(std::string attempted, std::string cause, std::vector<int> from) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = std::move(attempted),
               .cause = std::move(cause),
               .ranks = std::move(from),
               .hint = "data was corrupted in transit: check these nodes for memory and network errors"}};
}

Bytes value_of(int rank) {
  Bytes bytes(kValueBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>((static_cast<std::size_t>(rank) * 131 + i * 7) & 0xffU);
  }
  return bytes;
}

/// Ranks whose values a rank reads: all of a small job, else those at distances 1, 2, 4 and so on.
std::vector<int> ranks_to_read(int rank, int world_size) {
  std::vector<int> ranks;
  const bool all = world_size <= kMostRanksToReadAll;
  for (int distance = 1; distance < world_size; distance = all ? distance + 1 : distance * 2) {
    ranks.push_back((rank + distance) % world_size);
  }
  return ranks;
}

std::int64_t pair_value(int from, int to, std::size_t i) {
  return (std::int64_t{from} * 1'000'003 + to) * 10'007 + static_cast<std::int64_t>(i);
}

}  // namespace

Checks::Checks(World& world, CpuSet given, std::chrono::seconds limit)
    : world_(world), given_(std::move(given)), limit_(limit) {}

template <class Check>
void Checks::attempt(const char* name, Check check) {
  try {
    check();
  } catch (const Error& error) {
    findings_.push_back({.severity = Severity::failure,
                         .check = name,
                         .what = error.what(),
                         .blamed = error.ranks().empty() ? std::vector{world_.rank()} : error.ranks()});
  }
}

void Checks::run(bool expect_store) {
  attempt("exchange", [this] { exchange(); });
  attempt("collectives", [this] { collectives(); });
  if (group_) attempt("pairs", [this] { pairs(); });
  attempt("binding", [this] { binding(); });
  attempt("store", [this, expect_store] { torch_store(expect_store); });
}

/// Values through the launcher's key-value store.
void Checks::exchange() {
  KeyValueStore& store = world_.key_value_store();
  store.put(kKey, value_of(world_.rank()));
  store_usable_ = false;
  store.fence(deadline());
  store_usable_ = true;
  const Deadline end = deadline();
  for (const int rank : ranks_to_read(world_.rank(), world_.world_size())) {
    if (store.get(rank, kKey, end) != value_of(rank)) {
      wrong(fmt::format("reading the value of rank {} over {}", rank, store.transport()),
            "it is not the value that rank put", {rank});
    }
  }
}

/// Operations whose results every rank can predict.
void Checks::collectives() {
  ProcessGroup group = group_.emplace(make_process_group(world_));
  const Deadline end = deadline();
  const int rank = group.rank();
  const int size = group.size();
  // Reported at the end, since other ranks continue with the next operation. A wrong sum does not reveal its origin:
  // the rank that notices is blamed.
  std::optional<std::pair<std::string, int>> mistake;
  const auto must_be = [&](bool right, const char* operation, int from) {
    if (!right && !mistake) mistake.emplace(operation, from);
  };

  std::vector<std::int64_t> sums(kElements / 2);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = std::int64_t{rank} * 1'000'003 + static_cast<std::int64_t>(i);
  group.all_reduce(sums, ReduceOp::sum, end).wait();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::int64_t expected =
        std::int64_t{1'000'003} * size * (size - 1) / 2 + std::int64_t{size} * static_cast<std::int64_t>(i);
    must_be(sums[i] == expected, "all_reduce of int64, sum", rank);
  }

  std::vector<float> means(kElements);
  for (std::size_t i = 0; i < means.size(); ++i) means[i] = static_cast<float>(rank) + static_cast<float>(i % 7);
  group.all_reduce(means, ReduceOp::avg, end).wait();
  for (std::size_t i = 0; i < means.size(); ++i) {
    const float expected = static_cast<float>(size - 1) / 2 + static_cast<float>(i % 7);
    must_be(std::abs(means[i] - expected) <= 1e-4F * (expected + 1), "all_reduce of float32, avg", rank);
  }

  std::array<std::int32_t, 2> own{rank, ~rank};
  std::vector<std::int32_t> all(own.size() * static_cast<std::size_t>(size));
  group.all_gather(std::span{own}, all, end).wait();
  for (int other = 0; other < size; ++other) {
    const auto at = own.size() * static_cast<std::size_t>(other);
    must_be(all[at] == other && all[at + 1] == ~other, "all_gather of int32", other);
  }

  std::vector<std::int64_t> told(kElements / 2, rank == size - 1 ? 4711 : 0);
  group.broadcast(told, size - 1, end).wait();
  must_be(std::all_of(told.begin(), told.end(), [](std::int64_t value) { return value == 4711; }), "broadcast of int64",
          size - 1);

  group.barrier(end).wait();
  if (mistake) wrong(mistake->first, "wrong result", {mistake->second});
}

/// Every rank sends different data to every other, which covers all pairs of nodes.
void Checks::pairs() {
  const auto size = static_cast<std::size_t>(group_->size());
  const std::size_t each = std::clamp<std::size_t>(kLargestExchangeElements / size, 1, kMostElementsPerPair);
  std::vector<std::int64_t> sent(each * size);
  std::vector<std::int64_t> received(each * size);
  for (std::size_t i = 0; i < sent.size(); ++i)
    sent[i] = pair_value(group_->rank(), static_cast<int>(i / each), i % each);
  group_->all_to_all(sent, received, deadline()).wait();
  for (std::size_t i = 0; i < received.size(); ++i) {
    const int from = static_cast<int>(i / each);
    if (received[i] == pair_value(from, group_->rank(), i % each)) continue;
    std::vector<int> both{std::min(from, group_->rank()), std::max(from, group_->rank())};
    wrong("all_to_all of int64", fmt::format("rank {} got wrong values from rank {}", group_->rank(), from),
          std::move(both));
  }
}

/// Whether this rank runs where it was placed. Rank 0 judges what only a node's ranks together show.
void Checks::binding() {
  const CpuSet now = Binding::current().cpus;
  if (world_.placement() && now != world_.placement()->cpus) {
    throw Error{{.code = ErrorCode::conflict,
                 .attempted = "checking the processors of this rank",
                 .cause = fmt::format("DDP_BIND should have bound it to {}, but it may run on {}",
                                      world_.placement()->cpus.to_string(), now.to_string()),
                 .hint = "'ddp-info topo' in the same step shows why; does a task prolog change the mask?"}};
  }
  const auto environment = base::Environment::process();
  if (!environment.has("SLURM_PROCID")) return;  // ddprun divides the node itself
  const int asked = environment.number("SLURM_CPUS_PER_TASK").value_or(1);
  const int got = given_.count();
  if (got >= asked) return;
  findings_.push_back({.severity = Severity::warning,
                       .check = "binding",
                       .what = fmt::format("it may run on {} of the {} processors requested by --cpus-per-task ({})",
                                           got, asked, given_.to_string()),
                       .blamed = {world_.rank()}});
}

/// The store of torch.distributed: all ranks wire up over it a second time.
void Checks::torch_store(bool expected) {
  const auto environment = base::Environment::process();
  for (const char* const name : base::kTorchrunRequired) {
    if (environment.has(name)) continue;
    if (!expected) return;
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "looking for the store of torch.distributed",
                 .cause = fmt::format("{} is not set", name),
                 .hint = environment.has("SLURM_DDP_STEP")
                             ? "srun --ddp was used, but Slurm does not load the plugin on this node: "
                               "'ddp-selftest --local' says why"
                             : "start with srun --ddp or ddprun"}};
  }
  store_checked_ = true;
  if (world_.source() == LaunchSource::torchrun) return;  // then wire-up went over it
  World second = World::init({.timeout = limit_, .launch = LaunchSource::torchrun, .keep_session = true});
  if (second.rank() != world_.rank() || second.world_size() != world_.world_size()) {
    throw Error{{.code = ErrorCode::conflict,
                 .attempted = "joining the job over the store of torch.distributed",
                 .cause = fmt::format("it is rank {} of {} there, but rank {} of {} in the job", second.rank(),
                                      second.world_size(), world_.rank(), world_.world_size()),
                 .hint = "is RANK or WORLD_SIZE of another job exported?"}};
  }
}

}  // namespace ddp::selftest
