// Columns line up, and nothing but printable ASCII comes out.
#include "topo/text_grid.hpp"

#include <gtest/gtest.h>

namespace ddp::tools {
namespace {

TEST(TextGrid, ColumnsAreAsWideAsTheirWidestCellAndLinesEndWithoutBlanks) {
  TextGrid grid;
  grid.add_row({"A", "BB", "C"});
  grid.add_row({"aaaa", "", "c"});
  grid.add_row({"a", "b"});
  EXPECT_EQ(grid.to_string(),
            "A     BB  C\n"
            "aaaa      c\n"
            "a     b\n");
  EXPECT_EQ(grid.to_string(2).substr(0, 4), "  A ");
}

TEST(TextGrid, HoldsNothingThatSteersATerminal) {
  TextGrid grid;
  grid.add_row({"\x1b[31mred\n", "\xc3\xa9"});
  EXPECT_EQ(grid.to_string(), "?[31mred?  ??\n");
}

}  // namespace
}  // namespace ddp::tools
