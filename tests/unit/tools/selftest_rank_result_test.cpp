#include "selftest/rank_result.hpp"

#include <string>

#include <gtest/gtest.h>

#include <ddp/error.hpp>

namespace ddp::selftest {
namespace {

RankResult sample() {
  return {.rank = 7,
          .host = "n3",
          .cpus = CpuSet::parse("0-3,8"),
          .findings = {{.severity = Severity::failure, .check = "store", .what = "refused", .blamed = {0, 7}},
                       {.severity = Severity::warning, .check = "binding", .what = "narrow", .blamed = {7}}}};
}

TEST(SelftestRankResult, ComesBackAsItWas) { EXPECT_EQ(decode_rank_result(encode(sample())), sample()); }

TEST(SelftestRankResult, LongTextsAreCut) {
  RankResult result = sample();
  result.findings[0].what = std::string(10 * kLongestText, 'x');
  EXPECT_EQ(decode_rank_result(encode(result)).findings[0].what, std::string(kLongestText, 'x'));
}

TEST(SelftestRankResult, EveryTruncationIsAnError) {
  const Bytes whole = encode(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(decode_rank_result(std::span{whole}.first(size)), Error) << size;
  }
}

TEST(SelftestRankResult, OtherVersionsSeveritiesAndTrailingBytesAreErrors) {
  Bytes bytes = encode(sample());
  bytes.push_back(std::byte{0});
  EXPECT_THROW(decode_rank_result(bytes), Error);
  bytes = encode(sample());
  bytes[0] = std::byte{2};
  EXPECT_THROW(decode_rank_result(bytes), Error);
  RankResult result = sample();
  result.findings[0].severity = static_cast<Severity>(9);
  EXPECT_THROW(decode_rank_result(encode(result)), Error);
}

}  // namespace
}  // namespace ddp::selftest
