#include "options/shell_words.hpp"

#include "options/option_values.hpp"

namespace ddp::launcher {

std::vector<std::string> split_shell_words(const std::string& option, const std::string& text) {
  std::vector<std::string> words;
  bool inside = false;  // a word, which may be empty: ''
  char quote = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (quote == 0 && (letter == ' ' || letter == '\t' || letter == '\n')) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (quote == 0 && (letter == '\'' || letter == '"')) {
      quote = letter;
    } else if (letter == quote && quote != 0) {
      quote = 0;
    } else if (letter == '\\' && quote != '\'') {
      if (at + 1 == text.size()) reject_value(option, text, "ends in a backslash", "write \\\\ for one");
      const char next = text[++at];
      // Within double quotes it keeps only what would mean something there.
      if (quote == '"' && next != '"' && next != '\\' && next != '$' && next != '`') words.back() += letter;
      words.back() += next;
    } else {
      words.back() += letter;
    }
  }
  if (quote != 0) reject_value(option, text, "has an open quote", "quote words as for a shell");
  if (words.empty() || words.front().empty()) reject_value(option, text, "is no command", "give one such as ssh");
  return words;
}

std::string shell_quoted(std::string_view word) {
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

}  // namespace ddp::launcher
