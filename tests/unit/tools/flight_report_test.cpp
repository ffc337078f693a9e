// What `ddp-info flight` prints.
#include "flight/flight_report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ddp::tools::flight {
namespace {

DumpFolder sample_folder() {
  DumpFolder folder;
  folder.job = "job7.0";
  folder.dumps.resize(2);
  folder.left_out = {"'x.json': it is empty"};
  return folder;
}

Analysis sample_analysis() {
  Analysis analysis;
  analysis.ranks = {0, 1, 2, 3};
  analysis.without_dump = {3};
  analysis.first = Finding{.kind = Divergence::other_size,
                           .group = "world",
                           .culprits = {1},
                           .others = {0, 2},
                           .sure = true,
                           .theirs = "all_reduce #4 of float32 x 5, sum",
                           .expected = "all_reduce #4 of float32 x 6, sum"};
  analysis.waits = {{.group = "world",
                     .ranks = {0, 2},
                     .operation = "all_reduce #4 of float32 x 6, sum",
                     .missing = {3},
                     .seconds = 12.34}};
  analysis.stragglers = {{.rank = 2, .last = 8, .of = 10, .seconds = 0.5, .longest = 0.25, .longest_at = "barrier #3"}};
  return analysis;
}

TEST(FlightReport, IsAFewLines) {
  EXPECT_EQ(text_report(sample_folder(), sample_analysis()),
            "job7.0: 4 ranks, files of 2; none of rank 3\n"
            "first, in group world:\n"
            "  rank 1 called all_reduce #4 of float32 x 5, sum: another size\n"
            "  ranks 0, 2 called all_reduce #4 of float32 x 6, sum\n"
            "waiting:\n"
            "  ranks 0, 2 in all_reduce #4 of float32 x 6, sum of group world for rank 3, 12.3 s\n"
            "slow:\n"
            "  rank 2 came last in 8 of 10 collectives; the others waited 0.500 s for it, 0.250 s in barrier #3\n"
            "left out:\n"
            "  'x.json': it is empty\n");
}

TEST(FlightReport, SaysWhatIsMissingAndWhatIsNotSure) {
  Analysis analysis;
  analysis.ranks = {0, 1};
  EXPECT_EQ(text_report({.job = "ddp"}, analysis),
            "ddp: 2 ranks, files of all\nno rank differs from the others, and none waits\n");
  analysis.first = Finding{.kind = Divergence::missing_call,
                           .group = "world",
                           .culprits = {1},
                           .others = {0},
                           .sure = false,
                           .theirs = "",
                           .expected = "barrier #1"};
  EXPECT_EQ(text_report({.job = "ddp"}, analysis),
            "ddp: 2 ranks, files of all\n"
            "first, in group world:\n"
            "  rank 1 has not called barrier #1: a call is missing\n"
            "  rank 0 called barrier #1\n"
            "  nothing tells which side is wrong\n");
  analysis.first->kind = Divergence::no_dump;
  analysis.first->sure = true;
  EXPECT_NE(
      text_report({.job = "ddp"}, analysis).find("rank 1 has left no file: it ended, or could not write its file"),
      std::string::npos);
  analysis.first->kind = Divergence::extra_call;
  analysis.first->theirs = "barrier #1";
  analysis.first->expected = "";
  EXPECT_NE(text_report({.job = "ddp"}, analysis)
                .find("  rank 1 called barrier #1: a call too many\n  rank 0 has not called it\n"),
            std::string::npos);
}

TEST(FlightReport, HasAllOfItAsJson) {
  const auto document = nlohmann::json::parse(json_report(sample_folder(), sample_analysis()));
  EXPECT_EQ(document["schema"], "ddp-info-flight/1");
  EXPECT_EQ(document["without_file"].dump(), "[3]");
  EXPECT_EQ(document["first"]["kind"], "other_size");
  EXPECT_EQ(document["first"]["ranks"].dump(), "[1]");
  EXPECT_EQ(document["first"]["others_called"], "all_reduce #4 of float32 x 6, sum");
  EXPECT_EQ(document["waits"][0]["waits_for"].dump(), "[3]");
  EXPECT_EQ(document["slow"][0]["longest_operation"], "barrier #3");
  EXPECT_EQ(document["left_out"][0], "'x.json': it is empty");
  EXPECT_EQ(document["files"].size(), 2U);
}

}  // namespace
}  // namespace ddp::tools::flight
