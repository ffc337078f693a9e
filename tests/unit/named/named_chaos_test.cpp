// Operations of all kinds, in another order on each rank, from two threads, over three sets, some of them wrong in a
// random way: every wrong one is told on all ranks of its set, every right one has the right result.
#include "unit/named/named_ranks.hpp"

namespace ddp {
namespace {

constexpr int kRanks = 3;
constexpr int kOperations = 200;

enum class Wrong { no, shape, dtype, op, root };

struct Planned {
  NamedKind kind = NamedKind::barrier;
  std::string name{};
  int set = 0;
  Wrong wrong = Wrong::no;
  int culprit = 0;  ///< the rank that gives something else
  std::size_t rows = 1;
};

const std::vector<std::vector<int>>& members() {
  static const std::vector<std::vector<int>> sets{{0, 1, 2}, {0, 1}, {1, 2}};
  return sets;
}

std::vector<Planned> plan(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&random](std::size_t limit) { return random() % limit; };
  std::vector<Planned> all;
  for (int i = 0; i < kOperations; ++i) {
    Planned one{.kind = static_cast<NamedKind>(below(6)), .name = "n" + std::to_string(i / 3)};
    one.set = i % 3;  // one name in all sets
    const auto& ranks = members()[static_cast<std::size_t>(one.set)];
    one.culprit = ranks[below(ranks.size())];
    one.rows = below(9);
    if (below(10) == 0 && one.kind != NamedKind::barrier) {
      one.wrong = below(2) == 0 ? Wrong::shape : Wrong::dtype;
      if (one.kind == NamedKind::all_reduce && below(2) == 0) one.wrong = Wrong::op;
      if (one.kind == NamedKind::broadcast && below(2) == 0) one.wrong = Wrong::root;
    }
    all.push_back(one);
  }
  return all;
}

struct Submitted {
  explicit Submitted(const Planned& what) : planned(&what) {}
  const Planned* planned;
  std::vector<std::int32_t> values{};
  std::optional<NamedHandle> handle{};
};

void submit(NamedOperations& named, int rank, Submitted& one) {
  const Planned& planned = *one.planned;
  const auto& ranks = members()[static_cast<std::size_t>(planned.set)];
  const bool wrong = planned.culprit == rank;
  const std::int64_t width = wrong && planned.wrong == Wrong::shape ? 3 : 2;
  NamedCall call{.kind = planned.kind, .name = planned.name, .set = planned.set};
  auto rows = static_cast<std::int64_t>(planned.rows);
  if (planned.kind == NamedKind::all_gather) rows += rank;
  if (planned.kind == NamedKind::all_to_all) rows = static_cast<std::int64_t>(ranks.size());
  one.values.assign(static_cast<std::size_t>(rows * width), rank + 1);
  if (planned.kind != NamedKind::barrier) {
    const DType dtype = wrong && planned.wrong == Wrong::dtype ? DType::uint32 : DType::int32;
    call.tensors = {TensorView(one.values.data(), dtype, {rows, width})};
  }
  if (wrong && planned.wrong == Wrong::op) call.op = ReduceOp::max;
  call.root = wrong && planned.wrong == Wrong::root ? ranks.back() : ranks.front();
  if (planned.kind == NamedKind::all_to_all) call.splits.assign(ranks.size(), 1);
  one.handle = named.submit(std::move(call));
}

/// Whether the ranks really differ: a wrong root may be the right one's.
bool fails(const Planned& planned) { return planned.wrong != Wrong::no; }

void check(int rank, const Submitted& one) {
  const Planned& planned = *one.planned;
  const auto& ranks = members()[static_cast<std::size_t>(planned.set)];
  const auto error = test::end_of(*one.handle);
  if (fails(planned)) {
    ASSERT_TRUE(error) << planned.name;
    EXPECT_EQ(error->code(), ErrorCode::mismatch);
    EXPECT_EQ(error->ranks(), ranks);
    EXPECT_THAT(error->attempted(), testing::HasSubstr("'" + planned.name + "'"));
    EXPECT_THAT(error->cause(), testing::HasSubstr("rank " + std::to_string(planned.culprit)));
    return;
  }
  ASSERT_FALSE(error) << planned.name << ": " << error->what();
  std::int32_t sum = 0;
  for (const int each : ranks) sum += each + 1;
  const auto expect_all = [&](std::int32_t value) {
    EXPECT_THAT(one.values, testing::Each(value)) << planned.name << " of rank " << rank;
  };
  if (planned.kind == NamedKind::all_reduce) expect_all(sum);
  if (planned.kind == NamedKind::broadcast) expect_all(ranks.front() + 1);
  if (planned.kind == NamedKind::barrier) return;
  if (planned.kind == NamedKind::all_reduce || planned.kind == NamedKind::broadcast) return;
  const NamedResult& result = one.handle->results().front();
  const auto* const first = reinterpret_cast<const std::int32_t*>(result.memory.get());
  const std::vector<std::int32_t> values(first, first + result.bytes / sizeof(std::int32_t));
  std::vector<std::int32_t> expected;
  if (planned.kind == NamedKind::reduce_scatter) expected.assign(values.size(), sum);
  for (const int each : ranks) {
    if (planned.kind == NamedKind::reduce_scatter) break;
    const std::size_t rows = planned.kind == NamedKind::all_to_all ? 1 : planned.rows + static_cast<std::size_t>(each);
    expected.insert(expected.end(), rows * 2, each + 1);
  }
  EXPECT_EQ(values, expected) << planned.name << " of rank " << rank;
}

void run_seed(unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::vector<Planned> planned = plan(seed);
  test::run_named(kRanks, {}, [&](int rank, NamedOperations& named) {
    for (std::size_t set = 1; set < members().size(); ++set) named.add_set(members()[set], test::soon());
    std::vector<Submitted> mine;
    for (const Planned& each : planned) {
      const auto& ranks = members()[static_cast<std::size_t>(each.set)];
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) mine.emplace_back(each);
    }
    std::shuffle(mine.begin(), mine.end(), std::mt19937(seed * 10 + static_cast<unsigned>(rank)));
    const std::size_t half = mine.size() / 2;
    std::thread other([&] {
      for (std::size_t i = half; i < mine.size(); ++i) submit(named, rank, mine[i]);
    });
    for (std::size_t i = 0; i < half; ++i) submit(named, rank, mine[i]);
    other.join();
    for (const Submitted& each : mine) check(rank, each);
    test::expect_success(named.submit({.name = "end"}));
  });
}

TEST(NamedChaos, EveryWrongOperationIsToldAndEveryRightOneIsRight) {
  const char* const wanted = std::getenv("DDP_TEST_NAMED_SEEDS");  // NOLINT(concurrency-mt-unsafe)
  const int seeds = wanted != nullptr ? std::atoi(wanted) : test::cases(5);
  for (int seed = 1; seed <= seeds && !testing::Test::HasFailure(); ++seed) run_seed(static_cast<unsigned>(seed));
}

}  // namespace
}  // namespace ddp
