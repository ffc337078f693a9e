// Host lists as mpirun, horovodrun, PBS and Slurm write them, and what contradicts itself.
#include "options/host_list.hpp"
#include "outcome/exit_error.hpp"

namespace ddp::launcher {
namespace {

using Mentions = std::vector<HostMention>;
using Hosts = std::vector<HostEntry>;

template <class Step>
std::string refusal_of(const Step& step) {
  try {
    step();
  } catch (const ExitError& error) {
    EXPECT_EQ(error.exit_status(), kExitUsage);
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "no complaint";
}

Mentions list(const std::string& text) { return parse_host_list("-H", text); }
Mentions file(const std::string& text) { return parse_host_file("hosts", text); }
Hosts hosts(const Mentions& mentions) { return merge_hosts("-H", mentions); }
std::string list_complaint(const std::string& text) {
  return refusal_of([&] { list(text); });
}
std::string file_complaint(const std::string& text) {
  return refusal_of([&] { file(text); });
}
std::string merge_complaint(const Mentions& mentions) {
  return refusal_of([&] { hosts(mentions); });
}

TEST(HostListTest, NamesWithAndWithoutNumbers) {
  EXPECT_EQ(list("n0:2,n1:2"), (Mentions{{"n0", 2, 0}, {"n1", 2, 0}}));
  EXPECT_EQ(list("n0, gpu-1.site.org "), (Mentions{{"n0", 0, 0}, {"gpu-1.site.org", 0, 0}}));
  EXPECT_EQ(list("10.0.0.1:3,[fd00::7]:4,[fe80::1%eth0]"),
            (Mentions{{"10.0.0.1", 3, 0}, {"fd00::7", 4, 0}, {"fe80::1%eth0", 0, 0}}));
}

TEST(HostListTest, RangesOfSlurms) {
  EXPECT_EQ(list("n[0-2,08]:2,login"),
            (Mentions{{"n0", 2, 0}, {"n1", 2, 0}, {"n2", 2, 0}, {"n08", 2, 0}, {"login", 0, 0}}));
}

TEST(HostListTest, WhatIsNoListIsRefused) {
  EXPECT_THAT(list_complaint("n0,,n1"), AllOf(HasSubstr("-H"), HasSubstr("an empty entry")));
  EXPECT_THAT(list_complaint(""), HasSubstr("an empty entry"));
  EXPECT_THAT(list_complaint("n0:"), HasSubstr("whole number from 1 to 4096"));
  EXPECT_THAT(list_complaint("n0:0"), HasSubstr("too small"));
  EXPECT_THAT(list_complaint("n0:x"), HasSubstr("the ranks of 'n0' in -H"));
  EXPECT_THAT(list_complaint("fd00::7"), HasSubstr("needs brackets"));
  EXPECT_THAT(list_complaint("[fd00::7:2"), HasSubstr("no closing bracket"));
  EXPECT_THAT(list_complaint("[fd00::7]2"), HasSubstr("no colon after the bracket"));
  EXPECT_THAT(list_complaint("n[3-1]"), HasSubstr("runs backwards"));
  EXPECT_THAT(list_complaint("n[1\n]"), HasSubstr("'1?' is not a number"));
  EXPECT_THAT(list_complaint("me@n0"), HasSubstr("names a user"));
  EXPECT_THAT(list_complaint("+n1"), HasSubstr("not a host name"));
}

TEST(HostListTest, NoHostIsAnOptionOfSsh) {
  for (const char* text : {"-oProxyCommand=x", "-F", "n0,-v", "[-o::1]", "-[1-2]"}) {
    EXPECT_THAT(list_complaint(text), HasSubstr("not a host name")) << text;
  }
  EXPECT_THAT(list_complaint("n0;reboot"), HasSubstr("not a host name"));
}

TEST(HostFileTest, FormsOfMpirunAndHorovodrun) {
  EXPECT_EQ(file("# nodes\n\nn0 slots=2 max_slots=4\n  n1\tslots = 3  # fast\nn2:4\r\nn3 max-slots=9\nn[4-5] cpus=1"),
            (Mentions{{"n0", 2, 4}, {"n1", 3, 0}, {"n2", 4, 0}, {"n3", 0, 9}, {"n4", 1, 0}, {"n5", 1, 0}}));
  EXPECT_THAT(file("\n# none\n"), IsEmpty());
}

TEST(HostFileTest, MarksOfWindowsEditors) {
  EXPECT_EQ(file("\xef\xbb\xbfn0 slots=2\r\nn1:3\r\n"), (Mentions{{"n0", 2, 0}, {"n1", 3, 0}}));
  EXPECT_EQ(file("\xef\xbb\xbf"), Mentions{});
  EXPECT_EQ(file("\xef\xbb\xbf# nodes\nn0"), (Mentions{{"n0", 0, 0}}));
  EXPECT_THAT(file_complaint(std::string("\xff\xfen\0"
                                         "0\0",
                                         6)),
              AllOf(HasSubstr("UTF-16"), HasSubstr("iconv")));
  EXPECT_THAT(file_complaint(std::string("\xfe\xff\0n\0"
                                         "0",
                                         6)),
              HasSubstr("UTF-16"));
}

TEST(HostFileTest, WhatNobodySeesIsShown) {
  EXPECT_THAT(file_complaint("n0\xc2\xa0slots=2"), AllOf(HasSubstr("line 1"), HasSubstr("'n0\\u00a0slots=2'")));
  EXPECT_THAT(file_complaint("n0\n\xef\xbb\xbfn1"), AllOf(HasSubstr("line 2"), HasSubstr("'\\ufeffn1'")));
  EXPECT_THAT(list_complaint("n0\xe2\x80\x8b"), HasSubstr("'n0\\u200b'"));
}

TEST(HostFileTest, ErrorsHaveTheLine) {
  EXPECT_THAT(file_complaint("n0\nn1 slot=2"), AllOf(HasSubstr("hosts, line 2"), HasSubstr("'slot=2'")));
  EXPECT_THAT(file_complaint("n0 slots=x"), HasSubstr("slots in hosts, line 1"));
  EXPECT_THAT(file_complaint("n0 slots="), HasSubstr("slots in hosts, line 1"));
  EXPECT_THAT(file_complaint("n0:2 slots=2"), HasSubstr("twice"));
  EXPECT_THAT(file_complaint("n0 n1"), HasSubstr("one host a line"));
}

TEST(HostMergeTest, SlotsOfAHostAddUpInTheOrderOfTheFirstMentions) {
  EXPECT_THAT(hosts({{"n1", 2, 0}, {"n0", 1, 0}, {"n1", 1, 8}}),
              ElementsAre(HostEntry{"n1", 3, 8}, HostEntry{"n0", 1, 0}));
  EXPECT_THAT(hosts({{"n1", 0, 0}, {"n0", 0, 0}}), ElementsAre(HostEntry{"n1", 0, 0}, HostEntry{"n0", 0, 0}));
}

TEST(HostMergeTest, NamesHaveNoCase) {
  EXPECT_THAT(hosts({{"n1", 2, 0}, {"N1", 1, 0}, {"n1.Site.org", 1, 0}, {"N1.site.ORG", 2, 0}}),
              ElementsAre(HostEntry{"n1", 3, 0}, HostEntry{"n1.Site.org", 3, 0}));
  EXPECT_THAT(hosts({{"N1", 0, 0}, {"n1", 0, 0}}), ElementsAre(HostEntry{"N1", 2, 0}));
}

TEST(HostMergeTest, AHostOnSeveralLinesHasSoManyRanks) {
  EXPECT_THAT(hosts({{"n1", 0, 0}, {"n1", 0, 0}, {"n0", 0, 0}}),
              ElementsAre(HostEntry{"n1", 2, 0}, HostEntry{"n0", 1, 0}));
}

TEST(HostMergeTest, ContradictionsAreRefused) {
  EXPECT_THAT(merge_complaint({{"n0", 2, 0}, {"n1", 0, 0}}), AllOf(HasSubstr("'n1' has no number"), HasSubstr("none")));
  EXPECT_THAT(merge_complaint({{"n0", 3, 2}}), HasSubstr("has 3 ranks, but max_slots=2"));
  EXPECT_THAT(merge_complaint({{"n0", 4096, 0}, {"n0", 4096, 0}}), HasSubstr("too many ranks"));
  EXPECT_THAT(merge_complaint({}), HasSubstr("names no host"));
}

}  // namespace

// --ssh-command is divided as a shell would.

namespace {

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
