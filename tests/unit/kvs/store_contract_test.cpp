// What all stores have in common: argument checks, the time kept for finding out who is missing, and the fence's error.
#include "kvs/store_contract.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::kvs {
namespace {

using test::error_of;
using test::thrown_by;

TEST(StoreContract, RanksOutsideTheWorldAreRefused) {
  for (const int rank : {0, 1, 3}) EXPECT_NO_THROW(check_rank(rank, 4)) << rank;
  for (const int rank : {-1, 4, 1000}) {
    const auto error = error_of([&] { check_rank(rank, 4); });
    ASSERT_TRUE(error) << rank;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error->what(), HasSubstr("rank " + std::to_string(rank)));
  }
}

TEST(StoreContract, AStoreThatWasLeftIsUnavailable) {
  EXPECT_NO_THROW(check_usable(true, "fence"));
  const Error error = thrown_by([] { check_usable(false, "the second fence"); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.attempted(), "the second fence");
}

TEST(StoreContract, AQuarterIsKeptAndAtMostTwoSeconds) {
  const auto reserve_of = [](milliseconds time) {
    const Deadline deadline = Deadline::after(time);
    return std::chrono::duration_cast<milliseconds>(deadline.when() - before_reserve(deadline).when());
  };
  EXPECT_NEAR(static_cast<double>(reserve_of(milliseconds(4000)).count()), 1000, 20);
  EXPECT_NEAR(static_cast<double>(reserve_of(milliseconds(400)).count()), 100, 10);
  EXPECT_EQ(reserve_of(milliseconds(8400)), milliseconds(2000));
  EXPECT_EQ(reserve_of(std::chrono::hours(1)), milliseconds(2000));
  EXPECT_EQ(reserve_of(milliseconds(0)), milliseconds(0));
  EXPECT_EQ(reserve_of(milliseconds(-50)), milliseconds(0)) << "a deadline that has passed must not move";
}

TEST(StoreContract, FenceErrorNamesTheAbsent) {
  const Error error = fence_timeout("the first fence", {2, 5}, 8);
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_EQ(error.ranks(), (std::vector<int>{2, 5}));
  EXPECT_THAT(error.what(), HasSubstr("the first fence: 2 of 8 ranks did not arrive"));
  EXPECT_THAT(error.what(), HasSubstr("(ranks 2, 5)"));
  EXPECT_THAT(error.what(), HasSubstr("DDP_INIT_TIMEOUT"));
}

TEST(StoreContract, FenceErrorWithoutAbsentRanksBlamesTheLauncher) {
  const Error error = fence_timeout("fence", {}, 8);
  EXPECT_TRUE(error.ranks().empty());
  EXPECT_THAT(error.what(), HasSubstr("all ranks arrived"));
}

}  // namespace

// Which keys all stores take.

namespace {

TEST(StoreKey, TakesWhatEveryTransportCanCarry) {
  for (const std::string key : {"a", "ddp.record", "A-Z_0.9", "-"}) EXPECT_NO_THROW(check_key(key)) << key;
  EXPECT_NO_THROW(check_key(std::string(64, 'k')));
}

TEST(StoreKey, RefusesEverythingElse) {
  std::vector<std::string> keys = {"", std::string(65, 'k'), "a b", "a/b", "a;b", "a=b", "a\nb", "\xc3\xa9", "a%", "#"};
  keys.push_back(std::string("a\0b", 3));
  for (const std::string& key : keys) {
    const auto error = test::error_of([&] { check_key(key); });
    ASSERT_TRUE(error) << key;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  }
}

TEST(StoreKey, MessageIsPrintable) {
  const Error error = test::thrown_by([] { check_key("a\nb"); });
  EXPECT_NE(std::string(error.what()).find("a\\x0ab"), std::string::npos) << error.what();
  EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
}

}  // namespace

}  // namespace ddp::kvs
