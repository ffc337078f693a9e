#include "options/string_template.hpp"

namespace ddp::launcher {
namespace {

// Python's idpattern, (?a:[_a-z][_a-z0-9]*) without regard to case: ASCII whatever the locale.
bool starts_name(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool in_name(char c) { return starts_name(c) || (c >= '0' && c <= '9'); }

std::string_view leading_name(std::string_view text) {
  if (text.empty() || !starts_name(text.front())) return {};
  std::size_t length = 1;
  while (length < text.size() && in_name(text[length])) ++length;
  return text.substr(0, length);
}

/// The length of the placeholder that @p text begins with, '$' included; the name is empty where there is none.
struct Placeholder {
  std::size_t length = 1;
  std::string_view name;
};

Placeholder read_placeholder(std::string_view text) {
  const std::string_view rest = text.substr(1);
  if (rest.starts_with('{')) {
    const std::string_view name = leading_name(rest.substr(1));
    const std::size_t end = 1 + name.size();
    if (name.empty() || end >= rest.size() || rest[end] != '}') return {};
    return {.length = name.size() + 3, .name = name};
  }
  const std::string_view name = leading_name(rest);
  return {.length = 1 + name.size(), .name = name};
}

}  // namespace

std::string fill_template(std::string_view text,
                          const std::function<std::optional<std::string>(std::string_view)>& value_of) {
  std::string out;
  while (!text.empty()) {
    const std::size_t dollar = text.find('$');
    out += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar);
    if (text.starts_with("$$")) {
      out += '$';
      text.remove_prefix(2);
      continue;
    }
    const Placeholder placeholder = read_placeholder(text);
    const auto value = placeholder.name.empty() ? std::nullopt : value_of(placeholder.name);
    out += value ? std::string_view{*value} : text.substr(0, placeholder.length);
    text.remove_prefix(placeholder.length);
  }
  return out;
}

}  // namespace ddp::launcher
