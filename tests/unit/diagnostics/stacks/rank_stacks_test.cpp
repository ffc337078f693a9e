// Equal stacks are one, in the order of ranks, and all together are bounded.
#include "diagnostics/stacks/rank_stacks.hpp"

#include <string>

#include <gmock/gmock.h>

namespace ddp::diagnostics {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

TEST(RankStacks, EqualOnesAreJoined) {
  RankStacks stacks;
  stacks.add({.ranks = {4}, .tool = "gdb", .text = "b"}, 100);
  stacks.add({.ranks = {2, 3}, .tool = "gdb", .text = "a"}, 100);
  stacks.add({.ranks = {0, 1, 7}, .tool = "gdb", .text = "a"}, 100);
  stacks.add({.ranks = {6}, .tool = "proc", .text = "a"}, 100);
  stacks.add({.tool = "gdb", .text = "c"}, 100);
  EXPECT_THAT(stacks.groups, ElementsAre(StackGroup{.ranks = {0, 1, 2, 3, 7}, .tool = "gdb", .text = "a"},
                                         StackGroup{.ranks = {4}, .tool = "gdb", .text = "b"},
                                         StackGroup{.ranks = {6}, .tool = "proc", .text = "a"}));
}

TEST(RankStacks, WhatIsTooLongLosesItsText) {
  RankStacks stacks;
  for (int rank = 0; rank < 1000; ++rank)
    stacks.add({.ranks = {rank}, .tool = "gdb", .text = std::to_string(rank) + std::string(1000, 'x')}, 10'000);
  std::size_t bytes = 0;
  for (const StackGroup& group : stacks.groups) bytes += group.text.size();
  EXPECT_LE(bytes, 10'100U);
  ASSERT_THAT(stacks.groups, SizeIs(10));
  EXPECT_THAT(stacks.groups.back().ranks, SizeIs(991));
}

TEST(RankStacks, NotesNameTheirHostsOnce) {
  RankStacks stacks;
  stacks.note("n0", "no gdb");
  stacks.note("n1", "no gdb");
  stacks.note("n1", "no gdb");
  stacks.note("n1", "other");
  EXPECT_THAT(stacks.notes, ElementsAre(StackNote{.hosts = {"n0", "n1"}, .text = "no gdb"},
                                        StackNote{.hosts = {"n1"}, .text = "other"}));
  for (int i = 0; i < 1000; ++i) stacks.note("n0", std::to_string(i));
  EXPECT_THAT(stacks.notes, SizeIs(kMaxStackNotes));
}

}  // namespace
}  // namespace ddp::diagnostics
