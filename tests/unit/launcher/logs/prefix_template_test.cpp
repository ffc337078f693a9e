// The rules of Python's string.Template, checked against the interpreter where there is one.
#include "logs/prefix_template.hpp"

#include <array>
#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include <gmock/gmock.h>

namespace ddp::launcher {
namespace {

const PrefixValues kValues{.role_name = "trainer", .rank = 11, .local_rank = 3};

std::string filled(std::string_view text) { return fill_prefix_template(text, kValues); }

TEST(PrefixTemplate, ReplacesWhatTorchrunKnows) {
  EXPECT_EQ(filled(kDefaultPrefixTemplate), "[trainer3]:");
  EXPECT_EQ(filled("[${role_name}-${local_rank}:${rank}]:"), "[trainer-3:11]:");
  EXPECT_EQ(filled("$role_name $rank $local_rank"), "trainer 11 3");
  EXPECT_EQ(filled(""), "");
  EXPECT_EQ(filled("no placeholders"), "no placeholders");
}

TEST(PrefixTemplate, LeavesUnknownAndMalformedAsTheyAre) {
  for (const char* text : {"$ranks", "$RANK", "${host}", "${rank", "${}", "${ rank}", "${rank }", "$", "a$ b", "$1",
                           "${1a}", "$-", "$\xc5\xbf", "${ran\xc3\xa9}"})
    EXPECT_EQ(filled(text), text);
}

TEST(PrefixTemplate, NamesAreAsLongAsPossible) {
  EXPECT_EQ(filled("$rank-$local_rank."), "11-3.");
  EXPECT_EQ(filled("$rank_0"), "$rank_0");
  EXPECT_EQ(filled("${rank}_0"), "11_0");
  EXPECT_EQ(filled("$rank\xc3\xa9"), "11\xc3\xa9");
}

TEST(PrefixTemplate, TwoDollarsAreOne) {
  EXPECT_EQ(filled("$$"), "$");
  EXPECT_EQ(filled("$$rank"), "$rank");
  EXPECT_EQ(filled("$$$rank"), "$11");
  EXPECT_EQ(filled("$${rank}$$$"), "${rank}$$");
}

TEST(PrefixTemplate, ValuesAreNotExpandedAgain) {
  EXPECT_EQ(fill_prefix_template("$role_name|$role_name", {.role_name = "$rank$$", .rank = 1, .local_rank = 2}),
            "$rank$$|$rank$$");
}

TEST(PrefixTemplate, AgreesWithPython) {
  constexpr std::array<const char*, 14> kParts = {"$", "{", "}", "rank", "local_rank", "role_name", "${rank}",
                                                  "_", "7", "x", " ",    "R",          "$$",        "\xc3\xa9"};
  std::mt19937 dice{7};
  std::string program = "from string import Template\nfor t in [";
  std::string expected;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (unsigned parts = 1 + dice() % 7; parts > 0; --parts) text += kParts[dice() % kParts.size()];
    program += "\"" + text + "\",";
    expected += filled(text) + "\n";
  }
  program += "]: print(Template(t).safe_substitute(role_name='trainer', rank=11, local_rank=3))\n";
  const std::string path = testing::TempDir() + "prefix_template_test.py";
  const std::unique_ptr<FILE, int (*)(FILE*)> script{std::fopen(path.c_str(), "w"), &std::fclose};
  ASSERT_TRUE(script);
  ASSERT_EQ(std::fwrite(program.data(), 1, program.size(), script.get()), program.size());
  std::fflush(script.get());
  const std::unique_ptr<FILE, int (*)(FILE*)> python{
      ::popen(("PYTHONIOENCODING=utf-8 python3 " + path + " 2>/dev/null").c_str(), "r"), &::pclose};
  ASSERT_TRUE(python);
  std::string answer;
  std::array<char, 4096> buffer;
  for (std::size_t size = 0; (size = std::fread(buffer.data(), 1, buffer.size(), python.get())) > 0;)
    answer.append(buffer.data(), size);
  std::remove(path.c_str());
  if (answer.empty()) GTEST_SKIP() << "no python3";
  EXPECT_TRUE(answer == expected);
}

}  // namespace
}  // namespace ddp::launcher
