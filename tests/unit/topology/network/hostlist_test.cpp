// Slurm's compressed node lists.
#include "topology/network/hostlist.hpp"

#include "unit/kvs/rank_threads.hpp"

namespace ddp::topology {
namespace {

using Names = std::vector<std::string>;

TEST(Hostlist, PlainNames) {
  EXPECT_EQ(expand_hostlist("login"), (Names{"login"}));
  EXPECT_EQ(expand_hostlist("a,b-1,c.example.org"), (Names{"a", "b-1", "c.example.org"}));
}

TEST(Hostlist, Ranges) {
  EXPECT_EQ(expand_hostlist("n[0-3,7]"), (Names{"n0", "n1", "n2", "n3", "n7"}));
  EXPECT_EQ(expand_hostlist("n[5]"), (Names{"n5"}));
  EXPECT_EQ(expand_hostlist("n[3-3]"), (Names{"n3"}));
  EXPECT_EQ(expand_hostlist("n[2,1],m[9-10],login"), (Names{"n2", "n1", "m9", "m10", "login"}));
  EXPECT_EQ(expand_hostlist("[1-2]x"), (Names{"1x", "2x"}));
}

TEST(Hostlist, KeepsLeadingZeros) {
  EXPECT_EQ(expand_hostlist("n[08-11]"), (Names{"n08", "n09", "n10", "n11"}));
  EXPECT_EQ(expand_hostlist("n[001,2]"), (Names{"n001", "n2"}));
  EXPECT_EQ(expand_hostlist("n[98-101]"), (Names{"n98", "n99", "n100", "n101"}));
  EXPECT_EQ(expand_hostlist("n[00-01]"), (Names{"n00", "n01"}));
}

TEST(Hostlist, SeveralBracketsInOneName) {
  EXPECT_EQ(expand_hostlist("r[1-2]n[01-02]-ib"), (Names{"r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"}));
  EXPECT_EQ(expand_hostlist("r[1,3][5,6]"), (Names{"r15", "r16", "r35", "r36"}));
}

TEST(Hostlist, EverythingElseIsRefused) {
  for (const std::string text : {"",         ",",     "a,",     ",a",    "a,,b",  "n[",     "n]",
                                 "n[1",      "n1]",   "n[]",    "n[1-]", "n[-1]", "n[3-1]", "n[a-b]",
                                 "n[1-2-3]", "n[1,]", "n[[1]]", "n[1]]", "n[1][", "n[1 ]",  "n[1-9999999999]",
                                 "n[0x1]",   "n[+1]"}) {
    const auto error = ddp::test::error_of([&] { expand_hostlist(text); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::protocol) << text;
  }
}

TEST(Hostlist, ALimitKeepsMemoryBounded) {
  EXPECT_EQ(expand_hostlist("n[1-10]", 10).size(), 10U);
  EXPECT_TRUE(ddp::test::error_of([] { expand_hostlist("n[1-11]", 10); }));
  EXPECT_TRUE(ddp::test::error_of([] { expand_hostlist("n[0-999999999]"); }));
  EXPECT_TRUE(ddp::test::error_of([] { expand_hostlist("n[0-99999][0-99999][0-99999]"); }));
}

// Each pair of brackets is one level of recursion, and the list may have as many bytes as an environment variable.
TEST(Hostlist, BracketsWithoutEndDoNotExhaustTheStack) {
  EXPECT_EQ(expand_hostlist("x[0][1][2][3][4]"), (Names{"x01234"})) << "Slurm has up to five dimensions";
  EXPECT_EQ(expand_hostlist("[0][1][2][3],[0][1][2][3],[0][1][2][3]").size(), 3U);
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += "[0]";
  const Error error = ddp::test::thrown_by([&] { expand_hostlist(text); });
  EXPECT_EQ(error.code(), ErrorCode::protocol);
}

}  // namespace
}  // namespace ddp::topology
