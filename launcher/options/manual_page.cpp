// roff escapes and the sections of a manual page.
#include "options/manual_page.hpp"

#include <fmt/format.h>

#include <ddp/version.hpp>

#include "options/option_values.hpp"
#include "options/program_text.hpp"

namespace ddp::launcher {
namespace {

/// Text that roff prints as it is. Dashes are the ones that a shell understands when they are copied.
std::string escaped(std::string_view text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";  // would be a request
    line_begins = c == '\n';
    switch (c) {
      case '\\': result += "\\e"; break;
      case '-': result += "\\-"; break;
      case '\'': result += "\\(aq"; break;
      case '^': result += "\\(ha"; break;
      case '~': result += "\\(ti"; break;
      default: result += c;
    }
  }
  return result;
}

std::string section(std::string_view heading) { return fmt::format(".SH {}\n", heading); }

std::string term(std::string_view bold, std::string_view meaning) {
  return fmt::format(".TP\n\\fB{}\\fR\n{}\n", escaped(bold), escaped(meaning));
}

std::string option_text(const OptionEntry& entry) {
  std::string names = entry.short_name.empty() ? "" : fmt::format("\\fB{}\\fR, ", escaped(entry.short_name));
  names += fmt::format("\\fB{}\\fR", escaped(entry.name));
  if (!entry.is_flag()) {
    const std::string value = fmt::format("\\fI{}\\fR", escaped(entry.value_name));
    names += entry.value_optional ? fmt::format("[={}]", value) : " " + value;
  }
  std::string text = fmt::format(".TP\n{}\n{}\n", names, escaped(entry.description));
  if (!entry.pet_name.empty()) text += fmt::format("Default in \\fB{}\\fR.\n", escaped(entry.pet_name));
  return text;
}

std::string options_text(const OptionTable& table) {
  std::string text = section("OPTIONS");
  std::string group;
  for (const OptionEntry& entry : table.entries()) {
    if (entry.group.empty()) continue;
    if (entry.group != group) text += fmt::format(".SS {}\n", escaped(entry.group));
    group = entry.group;
    text += option_text(entry);
  }
  return text;
}

}  // namespace

std::string manual_page(const OptionTable& table) {
  const ProgramText& about = program_text();
  std::string page = fmt::format(".TH DDPRUN 1 \"\" \"libddp {}\" \"User Commands\"\n", DDP_VERSION_STRING);
  page += section("NAME") + fmt::format("ddprun \\- {}\n", escaped(about.summary));
  page +=
      section("SYNOPSIS") + fmt::format("\\fBddprun\\fR {}\n", escaped(about.usage.substr(about.usage.find(' ') + 1)));
  page += section("DESCRIPTION") + escaped(about.description) + "\n.PP\n" + escaped(about.program) + "\n";
  page += options_text(table);
  page += section("ENVIRONMENT");
  for (const TextPair& pair : about.variables) page += term(pair.term, pair.meaning);
  page += section("SIGNALS");
  for (const TextPair& pair : about.signals) page += term(pair.term, pair.meaning);
  page += section("\"EXIT STATUS\"");
  for (const TextPair& pair : about.exit_statuses) page += term(pair.term, pair.meaning);
  page += section("EXAMPLES");
  for (const TextPair& pair : about.examples) page += term(pair.term, pair.meaning);
  page += section("\"SEE ALSO\"") + "\\fBsrun\\fR(1)\n";
  return page;
}

}  // namespace ddp::launcher
