// However output is cut up on its way, the same lines come out, and memory stays bounded.
#include "logs/line_assembler.hpp"

namespace ddp::launcher {
namespace {

/// Whole lines of what came out; "+" ends a line that was not finished.
class Lines {
 public:
  void add(std::span<const LinePiece> pieces) {
    for (const LinePiece& piece : pieces) {
      EXPECT_EQ(piece.begins, !inside_);
      EXPECT_LE(piece.text.size(), LineAssembler::kMaxLineBytes);
      if (piece.begins) lines_.emplace_back();
      lines_.back() += piece.text;
      inside_ = !piece.ends;
    }
  }
  const std::vector<std::string>& all() const { return lines_; }
  bool inside() const { return inside_; }

 private:
  std::vector<std::string> lines_;
  bool inside_ = false;
};

std::vector<std::string> lines_of(const std::vector<std::string>& parts) {
  LineAssembler assembler;
  Lines lines;
  for (const std::string& part : parts) lines.add(assembler.take(part));
  lines.add(assembler.take_rest());
  EXPECT_FALSE(lines.inside());
  return lines.all();
}

TEST(LineAssembler, JoinsPartsOfLines) {
  EXPECT_THAT(lines_of({"ab", "c\nd", "ef\n", "\n", "g"}), ElementsAre("abc", "def", "", "g"));
  EXPECT_THAT(lines_of({}), IsEmpty());
  EXPECT_THAT(lines_of({"", "\n", ""}), ElementsAre(""));
}

TEST(LineAssembler, HoldsBackAnUnfinishedLine) {
  LineAssembler assembler;
  EXPECT_THAT(assembler.take("half"), IsEmpty());
  ASSERT_EQ(assembler.take("time\nnext").size(), 1U);
  ASSERT_EQ(assembler.take_rest().size(), 1U);
  EXPECT_THAT(assembler.take_rest(), IsEmpty());
}

TEST(LineAssembler, CarriageReturnsEndLinesAsInPythonsTextFiles) {
  EXPECT_THAT(lines_of({"a\r\nb\r\n"}), ElementsAre("a", "b"));
  EXPECT_THAT(lines_of({"a\r", "\nb\r", "c"}), ElementsAre("a", "b", "c"));
  EXPECT_THAT(lines_of({"\r 10%", "\r 20%", "\r100%\n", "done\n"}), ElementsAre(" 10%", " 20%", "100%", "done"));
  EXPECT_THAT(lines_of({"\r\n", "\r", "\n", "\n"}), ElementsAre("", "", ""));
  EXPECT_THAT(lines_of({"\r", "\r", "x"}), ElementsAre("x"));
}

TEST(LineAssembler, ALineThatAReturnEndsIsOverwritten) {
  LineAssembler assembler;
  const auto pieces = assembler.take("a\r\nb\rc\r");
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_FALSE(pieces[0].overwritten);
  EXPECT_TRUE(pieces[1].overwritten);
  EXPECT_EQ(assembler.bar(), "c");
  const auto kept = assembler.take("\n");
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_FALSE(kept[0].overwritten);  // it was "\r\n"
  EXPECT_EQ(assembler.bar(), std::nullopt);
}

TEST(LineAssembler, WhatAProgressBarShowsIsKnownBeforeItIsOverwritten) {
  LineAssembler assembler;
  assembler.take("start\n\r 10%");
  EXPECT_EQ(assembler.bar(), " 10%");
  assembler.take("\r 20%");
  EXPECT_EQ(assembler.bar(), " 20%");
  assembler.take("\r");
  EXPECT_EQ(assembler.bar(), " 20%");
  assembler.take("\n unfinished");
  EXPECT_EQ(assembler.bar(), std::nullopt);
}

TEST(LineAssembler, KeepsBinaryBytes) {
  const std::string binary{"\0\xff\x01\n\x80\0", 6};
  EXPECT_THAT(lines_of({binary}), ElementsAre(std::string("\0\xff\x01", 3), std::string("\x80\0", 2)));
}

TEST(LineAssembler, HandsOutLongLinesInPieces) {
  const std::string line(3 * LineAssembler::kMaxLineBytes + 17, 'x');
  EXPECT_THAT(lines_of({line + "\nend\n"}), ElementsAre(line, "end"));
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < line.size(); at += 1000) parts.push_back(line.substr(at, 1000));
  parts.emplace_back("\nend");
  EXPECT_THAT(lines_of(parts), ElementsAre(line, "end"));
  LineAssembler assembler;
  EXPECT_EQ(assembler.take(line).size(), 3U);  // not before the line ends, but as soon as it is too long
  EXPECT_THAT(lines_of({std::string(LineAssembler::kMaxLineBytes, 'x'), "\n"}),
              ElementsAre(std::string(LineAssembler::kMaxLineBytes, 'x')));
}

TEST(LineAssembler, CutsBetweenCharacters) {
  std::string line = "x";
  while (line.size() < LineAssembler::kMaxLineBytes + 9) line += "\xe2\x82\xac";  // the euro sign
  LineAssembler assembler;
  const auto pieces = assembler.take(line);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ((pieces[0].text.size() - 1) % 3, 0U);
  const std::string no_text(2 * LineAssembler::kMaxLineBytes + 1, '\x80');
  EXPECT_THAT(lines_of({no_text}), ElementsAre(no_text));
}

TEST(LineAssembler, AnyCutGivesTheSameLines) {
  std::mt19937 dice{3};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    const std::size_t size = round % 10 == 0 ? 200'000 : 200;
    while (text.size() < size) {
      text.append(dice() % (round % 10 == 0 ? 90'000 : 9), static_cast<char>('a' + dice() % 26));
      if (dice() % 3 != 0) text += '\n';
      if (dice() % 5 == 0) text += '\r';
    }
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = 1 + dice() % (round % 10 == 0 ? 70'000 : 20);
      parts.push_back(text.substr(at, length));
      at += length;
    }
    ASSERT_EQ(lines_of(parts), lines_of({text}));
  }
}

}  // namespace
}  // namespace ddp::launcher
