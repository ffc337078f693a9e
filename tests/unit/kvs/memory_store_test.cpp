// The store that needs no launcher, with ranks as threads: what is visible when, and what a missing rank does.
#include "kvs/memory_store.hpp"

#include "base/byte_stream.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::kvs {
namespace {

using base::to_bytes;
using base::to_text;
using test::error_of;
using test::soon;
using test::thrown_by;

TEST(MemoryStore, SaysWhoItIs) {
  const MemoryStore store{std::make_shared<MemoryHub>(3), 2};
  EXPECT_EQ(store.rank(), 2);
  EXPECT_EQ(store.world_size(), 3);
  EXPECT_EQ(store.transport(), "memory");
}

TEST(MemoryStore, EveryRankGetsTheValuesOfAll) {
  constexpr int kRanks = 4;
  const auto hub = std::make_shared<MemoryHub>(kRanks);
  test::run_ranks(kRanks, [&](int rank) {
    MemoryStore store{hub, rank};
    for (std::size_t i = 0; i < test::kAwkwardSizes.size(); ++i) {
      const std::string key = "value." + std::to_string(i);
      store.put(key, test::awkward_value(rank, test::kAwkwardSizes[i]));
    }
    store.fence(soon());
    for (int other = 0; other < kRanks; ++other) {
      for (std::size_t i = 0; i < test::kAwkwardSizes.size(); ++i) {
        const std::string key = "value." + std::to_string(i);
        EXPECT_TRUE(store.get(other, key, soon()) == test::awkward_value(other, test::kAwkwardSizes[i])) << key;
      }
    }
  });
}

TEST(MemoryStore, ValuesOfEarlierFencesStay) {
  const auto hub = std::make_shared<MemoryHub>(2);
  test::run_ranks(2, [&](int rank) {
    MemoryStore store{hub, rank};
    for (int round = 0; round < 50; ++round) {
      store.put("round." + std::to_string(round), to_bytes(std::to_string(rank * 1000 + round)));
      store.fence(soon());
      for (int earlier = 0; earlier <= round; ++earlier) {
        EXPECT_EQ(to_text(store.get(1 - rank, "round." + std::to_string(earlier), soon())),
                  std::to_string((1 - rank) * 1000 + earlier));
      }
    }
  });
}

TEST(MemoryStore, NothingIsVisibleBeforeTheFence) {
  const auto hub = std::make_shared<MemoryHub>(1);
  MemoryStore store{hub, 0};
  store.put("key", to_bytes("value"));
  const Error early = thrown_by([&] { store.get(0, "key", soon()); });
  EXPECT_EQ(early.code(), ErrorCode::not_found);
  store.fence(soon());
  EXPECT_EQ(to_text(store.get(0, "key", soon())), "value");
}

TEST(MemoryStore, AFenceNamesTheRanksThatDidNotCome) {
  const auto hub = std::make_shared<MemoryHub>(4);
  MemoryStore one{hub, 1};
  std::thread other([&] {
    MemoryStore three{hub, 3};
    EXPECT_TRUE(error_of([&] { three.fence(soon(300)); }));
  });
  const auto begin = Deadline::Clock::now();
  const auto error = error_of([&] { one.fence(soon(300)); });
  const auto took = Deadline::Clock::now() - begin;
  other.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
  EXPECT_THAT(error->ranks(), testing::IsSupersetOf({0, 2}));
  EXPECT_THAT(error->ranks(), testing::Not(testing::Contains(1)));
  EXPECT_GE(took, std::chrono::milliseconds(300));
  EXPECT_LT(took, std::chrono::seconds(20));

  const auto again = error_of([&] { one.fence(soon()); });
  ASSERT_TRUE(again) << "a failed fence cannot be taken back";
  EXPECT_EQ(again->code(), ErrorCode::unavailable);
}

TEST(MemoryStore, RefusesBadArguments) {
  MemoryStore store{std::make_shared<MemoryHub>(2), 0};
  for (const int rank : {-1, 2, 100}) {
    const auto error = error_of([&] { store.get(rank, "key", soon()); });
    ASSERT_TRUE(error) << rank;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  }
  const Error error = thrown_by([&] { store.put("a b", {}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
}

TEST(MemoryStore, NothingWorksAfterClose) {
  MemoryStore store{std::make_shared<MemoryHub>(1), 0};
  store.close();
  store.close();
  for (const auto& error : {error_of([&] { store.put("k", {}); }), error_of([&] { store.fence(soon()); }),
                            error_of([&] { store.get(0, "k", soon()); })}) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::unavailable);
  }
}

}  // namespace
}  // namespace ddp::kvs
