// Facts of hosts in short lines, which arrive mixed, or not at all.
#include "status/facts_lines.hpp"

#include <sstream>

#include <gmock/gmock.h>

namespace ddp::tools::status {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> printed_by(const std::string& host) {
  diagnostics::HostFacts facts{.host = host, .ranks = {}, .notes = {std::string(5000, 'x')}};
  std::vector<std::string> lines;
  std::istringstream text(facts_lines(facts));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST(FactsLines, OfSeveralHostsMayBeMixed) {
  const auto first = printed_by("n0");
  const auto second = printed_by("n1");
  ASSERT_GT(first.size(), 10U);
  FactsReader reader;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_LE(first[i].size(), 1000U);
    reader.add(first[i]);
    reader.add("srun: something else");
    reader.add(second[i]);
  }
  std::vector<std::string> notes;
  const auto found = reader.take(notes);
  EXPECT_THAT(notes, IsEmpty());
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].host, "n0");
  EXPECT_EQ(found[1].host, "n1");
  EXPECT_THAT(found[1].notes, ElementsAre(std::string(5000, 'x')));
}

TEST(FactsLines, AHostWithALineLostOrTornIsNoted) {
  auto torn = printed_by("n0");
  const auto whole = printed_by("n1");
  FactsReader reader;
  for (std::size_t i = 0; i < torn.size(); ++i) {
    if (i != 3) reader.add(torn[i]);
    reader.add(whole[i]);
  }
  std::vector<std::string> notes;
  EXPECT_THAT(reader.take(notes), SizeIs(1));
  EXPECT_THAT(notes, ElementsAre(HasSubstr("of n0:")));
  notes.clear();
  torn.back().resize(torn.back().size() - 1);
  for (const std::string& line : torn) reader.add(line);
  EXPECT_THAT(reader.take(notes), IsEmpty());
  EXPECT_THAT(notes, SizeIs(1));
}

}  // namespace
}  // namespace ddp::tools::status
