// --ssh-command is divided as a shell would.
#include "options/shell_words.hpp"

#include <gmock/gmock.h>

#include "outcome/exit_error.hpp"

namespace ddp::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> words(const std::string& text) { return split_shell_words("--ssh-command", text); }
std::string words_complaint(const std::string& text) {
  try {
    words(text);
  } catch (const ExitError& error) {
    return error.what();
  }
  return "no complaint";
}

TEST(ShellWords, BlanksDivideAndQuotesKeep) {
  EXPECT_THAT(words("ssh"), ElementsAre("ssh"));
  EXPECT_THAT(words("  ssh -i  'my key' \"a \\\" \\x b\"\t-o \\'\\  ''"),
              ElementsAre("ssh", "-i", "my key", "a \" \\x b", "-o", "' ", ""));
  EXPECT_THAT(words("a'b'\"c\"d"), ElementsAre("abcd"));
  EXPECT_THAT(words("ssh $HOME *"), ElementsAre("ssh", "$HOME", "*"));
}

TEST(ShellWords, WhatIsNoCommandIsRefused) {
  EXPECT_THAT(words_complaint("ssh 'a"), HasSubstr("open quote"));
  EXPECT_THAT(words_complaint("ssh \\"), HasSubstr("backslash"));
  for (const char* text : {"", "  ", "''"}) EXPECT_THAT(words_complaint(text), HasSubstr("--ssh-command")) << text;
}

TEST(ShellWords, QuotedWordsComeBack) {
  for (const char* word : {"", "a b", "it's", "\"$x\" \\", "a\nb"}) {
    EXPECT_THAT(words("x " + shell_quoted(word)), ElementsAre("x", word));
  }
}

}  // namespace
}  // namespace ddp::launcher
