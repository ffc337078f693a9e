// The digits file: what it holds, and what is said about one that is missing or damaged.
#include "digits/dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <sstream>
#include <string>

#include <ddp/error.hpp>

#include "digits/sample_order.hpp"

namespace digits {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A correct line with one field replaced.
std::string line_with(std::size_t field, const std::string& text) {
  std::string line;
  for (std::size_t i = 0; i <= kPixels; ++i) line += (i == 0 ? "" : ",") + (i == field ? text : std::string{"3"});
  return line;
}
std::string good_line() { return line_with(0, "3"); }

/// The error of reading @p text; fails the test if there is none.
ddp::Error error_of(const std::string& text) {
  std::istringstream lines{text};
  try {
    parse_digits(lines, "some.csv");
  } catch (const ddp::Error& error) {
    return error;
  }
  throw std::logic_error("the text was accepted: " + text);
}

TEST(DigitsFile, HoldsTheWholeTestSet) {
  const Dataset dataset = load_digits(default_digits_file());
  EXPECT_EQ(dataset.size(), 1797U);
  EXPECT_EQ(dataset.pixels.size(), 1797U * kPixels);
  std::array<int, kClasses> counts{};
  for (const auto label : dataset.labels) ++counts.at(label);
  // The counts that the data set's own description gives for its test set.
  EXPECT_THAT(counts, testing::ElementsAre(178, 182, 177, 183, 181, 182, 181, 179, 174, 180));
  EXPECT_EQ(*std::max_element(dataset.pixels.begin(), dataset.pixels.end()), kDarkest);
  // The first image is a 0, whose second row is 0 0 13 15 10 15 5 0.
  EXPECT_EQ(dataset.labels.front(), 0);
  EXPECT_THAT(dataset.image(0).subspan(8, 8), testing::ElementsAre(0, 0, 13, 15, 10, 15, 5, 0));
}

TEST(DigitsFile, LimitsOfValuesAndBothLineEndsAreAccepted) {
  std::istringstream lines{line_with(0, "0") + "\n" + line_with(63, "16") + "\r\n" + line_with(kPixels, "9")};
  const Dataset dataset = parse_digits(lines, "some.csv");
  ASSERT_EQ(dataset.size(), 3U);
  EXPECT_EQ(dataset.image(0)[0], 0);
  EXPECT_EQ(dataset.image(1)[63], 16);
  EXPECT_EQ(dataset.labels[2], 9);
}

struct BadField {
  std::size_t field;
  std::string text;
};
class DamagedField : public testing::TestWithParam<BadField> {};

TEST_P(DamagedField, IsNamedWithFileLineAndContent) {
  const auto& [field, text] = GetParam();
  const ddp::Error error = error_of(good_line() + "\n" + line_with(field, text) + "\n" + good_line() + "\n");
  EXPECT_EQ(error.code(), ddp::ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("some.csv"), HasSubstr("line 2"),
                                  HasSubstr("field " + std::to_string(field + 1) + " is '" + text + "'")));
}

INSTANTIATE_TEST_SUITE_P(Fields, DamagedField,
                         testing::Values(BadField{0, ""}, BadField{0, "x"}, BadField{0, "17"}, BadField{5, "-1"},
                                         BadField{9, " 3"}, BadField{9, "3 "}, BadField{63, "3.5"}, BadField{63, "+3"},
                                         BadField{63, "99999999999999999999"}, BadField{64, "10"}, BadField{64, ""}));

TEST(DamagedFile, NumberOfFieldsIsNamed) {
  EXPECT_THAT(error_of(good_line() + ",3\n").what(), AllOf(HasSubstr("line 1"), HasSubstr("66 fields instead of 65")));
  EXPECT_THAT(error_of(good_line() + "\n3,3\n").what(), AllOf(HasSubstr("line 2"), HasSubstr("2 fields")));
  EXPECT_THAT(error_of(good_line() + "\n\n" + good_line()).what(), AllOf(HasSubstr("line 2"), HasSubstr("is empty")));
  EXPECT_THAT(error_of("").what(), HasSubstr("no samples"));
}

TEST(MissingFile, IsNamedWithTheSystemsReason) {
  try {
    load_digits("/no/such/folder/digits.csv");
    FAIL() << "a file that does not exist was read";
  } catch (const ddp::Error& error) {
    EXPECT_EQ(error.code(), ddp::ErrorCode::not_found);
    EXPECT_EQ(error.native(), "ENOENT (2)");
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/no/such/folder/digits.csv"), HasSubstr("--data")));
  }
}

TEST(MissingFile, FolderIsNotAnEmptyFile) {
  try {
    load_digits("/");
    FAIL() << "a folder was read";
  } catch (const ddp::Error& error) {
    EXPECT_EQ(error.code(), ddp::ErrorCode::system);
    EXPECT_EQ(error.native(), "EISDIR (21)");
  }
}

TEST(SplitOfTheData, IsDisjointCompleteAndFixedByTheSeed) {
  const Split split = split_train_test(1797, 360, 7);
  EXPECT_EQ(split.train.size(), 1437U);
  EXPECT_EQ(split.test.size(), 360U);
  std::set<std::size_t> all{split.train.begin(), split.train.end()};
  all.insert(split.test.begin(), split.test.end());
  EXPECT_EQ(all.size(), 1797U);
  EXPECT_EQ(*all.rbegin(), 1796U);

  EXPECT_EQ(split_train_test(1797, 360, 7).test, split.test);
  EXPECT_NE(split_train_test(1797, 360, 8).test, split.test);
}

TEST(SplitOfTheData, LeavesSomethingToTrainOn) {
  EXPECT_EQ(split_train_test(11, 10, 1).train.size(), 1U);
  EXPECT_THROW(split_train_test(10, 10, 1), ddp::Error);
}

TEST(OrderOfSamples, IsAPermutationThatEveryPlatformMakes) {
  for (const std::size_t count : {0U, 1U, 2U, 100U}) {
    std::vector<std::size_t> order = shuffled_order(count, 1, 1);
    std::sort(order.begin(), order.end());
    std::vector<std::size_t> expected(count);
    std::iota(expected.begin(), expected.end(), std::size_t{0});
    EXPECT_EQ(order, expected);
  }
  EXPECT_NE(shuffled_order(100, 1, 1), shuffled_order(100, 1, 2));
  EXPECT_NE(shuffled_order(100, 1, 1), shuffled_order(100, 2, 1));
  EXPECT_NE(shuffled_order(100, 1, 2), shuffled_order(100, 2, 1));
  // Computed apart from this code, with Python's integers and the published definition of MT19937-64.
  EXPECT_THAT(shuffled_order(10, 1, 0), testing::ElementsAre(1, 7, 3, 9, 4, 0, 5, 2, 6, 8));
}

TEST(Batches, CoverTheOrderAndOnlyTheLastIsSmaller) {
  const std::vector<std::size_t> order = shuffled_order(10, 3, 0);
  const auto batches = global_batches(order, 4);
  ASSERT_EQ(batches.size(), 3U);
  std::vector<std::size_t> joined;
  for (const auto batch : batches) joined.insert(joined.end(), batch.begin(), batch.end());
  EXPECT_EQ(joined, order);
  EXPECT_EQ(batches[0].size(), 4U);
  EXPECT_EQ(batches[1].size(), 4U);
  EXPECT_EQ(batches[2].size(), 2U);
  EXPECT_EQ(global_batches(order, 5).size(), 2U);
  EXPECT_EQ(global_batches(order, 11).size(), 1U);
  EXPECT_TRUE(global_batches({}, 4).empty());
  EXPECT_THROW(global_batches(order, 0), ddp::Error);
}

}  // namespace
}  // namespace digits
