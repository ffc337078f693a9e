// Sets of processors: the kernel's list format, and set arithmetic against std::set.
#include <ddp/cpu_set.hpp>

#include <ddp/error.hpp>

namespace ddp {
namespace {

TEST(CpuSet, ReadsAndWritesTheKernelsLists) {
  for (const std::string list : {"", "0", "0-3", "0-3,8,10-11", "63-64", "127,129", "65535"}) {
    EXPECT_EQ(CpuSet::parse(list).to_string(), list);
  }
  EXPECT_EQ(CpuSet::parse("3,2,1,1-2,0").to_string(), "0-3");
  EXPECT_THAT(CpuSet::parse("1-2,64").to_vector(), ElementsAre(1, 2, 64));
}

TEST(CpuSet, RefusesWhatIsNoList) {
  for (const std::string list :
       {"x", "-", "1-", "-1", "3-1", "1,", ",1", "1,,2", "1 2", "0x1", "65536", "1-99999999999", "1-2-3"}) {
    EXPECT_THROW(CpuSet::parse(list), Error) << list;
  }
  EXPECT_THROW(CpuSet(std::vector<int>{-1}), Error);
  EXPECT_THROW(CpuSet(std::vector<int>{CpuSet::kLargest + 1}), Error);
}

TEST(CpuSet, EqualSetsAreEqualHoweverTheyCameAbout) {
  CpuSet large = CpuSet::parse("1,500");
  EXPECT_EQ(large - CpuSet::parse("500"), CpuSet::parse("1"));
  EXPECT_EQ(large & CpuSet::parse("0-9"), CpuSet::parse("1"));
  EXPECT_EQ(large - large, CpuSet{});
  EXPECT_TRUE((large - large).empty());
}

TEST(CpuSet, ArithmeticIsThatOfSets) {
  std::mt19937 random{7};
  for (int round = 0; round < 300; ++round) {
    std::set<int> a;
    std::set<int> b;
    const int largest = std::uniform_int_distribution{1, 400}(random);
    for (auto* set : {&a, &b}) {
      for (int i = std::uniform_int_distribution{0, 40}(random); i > 0; --i) {
        set->insert(std::uniform_int_distribution{0, largest}(random));
      }
    }
    const auto made = [](const std::set<int>& set) { return CpuSet(std::vector<int>(set.begin(), set.end())); };
    const CpuSet x = made(a);
    const CpuSet y = made(b);
    std::vector<int> both;
    std::vector<int> either;
    std::vector<int> only;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(either));
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(only));
    EXPECT_THAT((x & y).to_vector(), ElementsAreArray(both));
    EXPECT_THAT((x | y).to_vector(), ElementsAreArray(either));
    EXPECT_THAT((x - y).to_vector(), ElementsAreArray(only));
    EXPECT_EQ(x.intersects(y), !both.empty());
    EXPECT_EQ(x.contains(y), std::includes(a.begin(), a.end(), b.begin(), b.end()));
    EXPECT_EQ(x.count(), static_cast<int>(a.size()));
    EXPECT_EQ(x.first(), a.empty() ? -1 : *a.begin());
    EXPECT_EQ(CpuSet::parse(x.to_string()), x);
    EXPECT_EQ(x.contains(largest), a.count(largest) == 1);
    EXPECT_FALSE(x.contains(-1));
  }
}

}  // namespace
}  // namespace ddp
