// Help, manual page and completion for a program with commands; and how its words are read.
#include "cli/option_table.hpp"

#include "cli/exit_error.hpp"
#include "cli/generated_pages.hpp"

namespace ddp::cli {
namespace {

using Words = std::vector<std::string>;

struct Read {
  bool quick = false;
  Words rules;
};

OptionTable look_table(Read& read) {
  OptionTable table{{.name = "tool look",
                     .usage = {"DIR [OPTIONS]", "--quick"},
                     .description = {"Looks into DIR."},
                     .examples = {{"tool look there", "what is there"}},
                     .exit_statuses = {{"0", "seen"}, {"128+S", "ended"}}}};
  table.add_help();
  table.add_flag("-q,--quick", "Do not look twice.", read.quick);
  table.add_value("--rule", "RULE", "Only this.", [&](const auto&, const auto& text) { read.rules.push_back(text); })
      .choices({"old", "new"})
      .repeated();
  table.begin_group("");
  table.add_flag("--secret", "Nobody sees this.", read.quick);
  return table;
}

TEST(OptionTable, WordsAndOptionsMayBeMixedAndRepeated) {
  Read read;
  OptionTable table = look_table(read);
  EXPECT_THAT(table.read(Words{"a", "--rule=x", "-q", "--rule", "y", "b"}), ElementsAre("a", "b"));
  EXPECT_TRUE(read.quick);
  EXPECT_THAT(read.rules, ElementsAre("x", "y"));
  EXPECT_THROW(table.read_options(Words{"a"}), UsageError);
}

TEST(OptionTable, WithHelpNoValueIsRead) {
  Read read;
  OptionTable table = look_table(read);
  table.read(Words{"--help", "--rule", "x"});
  EXPECT_TRUE(table.given("--help"));
  EXPECT_TRUE(read.rules.empty());
}

TEST(OptionTable, HelpShowsAllButHiddenOptions) {
  Read read;
  const std::string help = look_table(read).help();
  EXPECT_THAT(help, testing::StartsWith(
                        "Usage: tool look DIR [OPTIONS]\n       tool look --quick\n\nLooks into DIR.\n\nOptions:\n"));
  EXPECT_THAT(help, HasSubstr("\n  -q, --quick                   Do not look twice.\n"));
  EXPECT_THAT(help, HasSubstr("\n      --rule RULE               Only this.\n"));
  EXPECT_THAT(help, HasSubstr("\nExit status:\n  0      seen\n  128+S  ended\n"));
  EXPECT_THAT(help, testing::Not(HasSubstr("secret")));
}

TEST(GeneratedPages, HaveTheOptionsOfCommands) {
  Read read;
  const OptionTable look = look_table(read);
  OptionTable table{{.name = "tool", .usage = {"COMMAND"}, .summary = "to look", .see_also = {"man"}}};
  table.add_help();
  const std::array commands{Command{"look", &look, ValueKind::folder}, Command{"version", nullptr}};
  const std::string page = manual_page(table, commands);
  for (const char* part :
       {".TH TOOL 1", "tool \\- to look", ".SH COMMANDS\n.SS look\n\\fBtool look\\fR DIR [OPTIONS]\n.br\n",
        "\\fB\\-q\\fR, \\fB\\-\\-quick\\fR\nDo not look twice.", ".SH EXAMPLES\n.TP\n\\fBtool look there"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  const std::string script = bash_completion(table, false, commands);
  for (const char* part : {"look) words='--help -h --quick -q --rule' operands=-d ;;", "\"look --rule\") mapfile",
                           "-W 'old new'", "words='--help -h look version'", "complete -F _tool tool\n"}) {
    EXPECT_THAT(script, HasSubstr(part));
  }
}

}  // namespace
}  // namespace ddp::cli
