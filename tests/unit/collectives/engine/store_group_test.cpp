// Groups over a store of the program's, as torch.distributed's: ranks that are threads here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include <ddp/error.hpp>
#include <ddp/process_group.hpp>

#include "kvs/memory_store.hpp"

namespace ddp::collectives {
namespace {

using ::testing::ElementsAre;

constexpr int kStoreRanks = 3;

std::unique_ptr<KeyValueStore> store_of(const std::shared_ptr<kvs::MemoryHub>& hub, int rank) {
  return std::make_unique<kvs::MemoryStore>(hub, rank);
}

StoreGroupOptions options_of(const char* name, std::vector<int> ranks, std::chrono::milliseconds timeout) {
  return {.name = name, .global_ranks = std::move(ranks), .timeout = timeout, .backend = "host"};
}

TEST(StoreGroup, RanksKeepTheirNumbersInTheJob) {
  const auto hub = std::make_shared<kvs::MemoryHub>(kStoreRanks);
  std::vector<std::future<int>> sums;
  for (int rank = 0; rank < kStoreRanks; ++rank) {
    sums.push_back(std::async(std::launch::async, [hub, rank] {
      ProcessGroup group =
          make_process_group(store_of(hub, rank), options_of("guests", {4, 9, 7}, std::chrono::seconds(60)));
      EXPECT_EQ(group.name(), "guests");
      EXPECT_EQ(group.rank(), rank);
      EXPECT_THAT(group.global_ranks(), ElementsAre(4, 9, 7));
      std::vector<std::int32_t> value{rank + 1};
      group.all_reduce(TensorView{value.data(), DType::int32, {1}}).wait();
      return static_cast<int>(value[0]);
    }));
  }
  for (auto& sum : sums) EXPECT_EQ(sum.get(), 6);
}

TEST(StoreGroup, TellsWhoStaysAway) {
  const auto hub = std::make_shared<kvs::MemoryHub>(2);
  try {
    make_process_group(store_of(hub, 0), options_of("alone", {}, std::chrono::milliseconds(100)));
    FAIL() << "a group without its second rank";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.ranks(), ElementsAre(1));
  }
}

TEST(StoreGroup, NumbersForOtherRanksAreRefused) {
  const auto hub = std::make_shared<kvs::MemoryHub>(1);
  EXPECT_THROW(make_process_group(store_of(hub, 0), options_of("short", {0, 1}, std::chrono::seconds(60))), Error);
}

}  // namespace
}  // namespace ddp::collectives
