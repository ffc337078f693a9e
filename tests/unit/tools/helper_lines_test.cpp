// Messages of hosts in short lines, which arrive mixed, or not at all.
#include "command/helper_lines.hpp"

#include <sstream>

#include <gmock/gmock.h>

namespace ddp::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> printed_by(const std::string& host) {
  const Bytes message(5000, static_cast<std::byte>(host.back()));
  std::vector<std::string> lines;
  std::istringstream text(helper_lines(host, message));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST(HelperLines, OfSeveralHostsMayBeMixed) {
  const auto first = printed_by("n0");
  const auto second = printed_by("n1");
  ASSERT_GT(first.size(), 10U);
  HelperLines reader;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_LE(first[i].size(), 1000U);
    reader.add(first[i]);
    reader.add("srun: something else");
    reader.add(second[i]);
  }
  std::vector<std::string> notes;
  const auto found = reader.take(notes);
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_THAT(found, ElementsAre(Bytes(5000, std::byte{'0'}), Bytes(5000, std::byte{'1'})));
}

TEST(HelperLines, AHostWithALineLostOrTornIsNoted) {
  auto torn = printed_by("n0");
  const auto whole = printed_by("n1");
  HelperLines reader;
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
}  // namespace ddp::tools
