#include "topology/network/hostlist.hpp"

#include <charconv>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::topology {
namespace {

// Slurm itself knows up to five dimensions of node names. Each pair of brackets costs a level of recursion here.
constexpr int kMostBrackets = 8;

class Expander {
 public:
  Expander(std::string_view whole, std::size_t limit) : whole_(whole), limit_(limit) {}

  /// Appends all names that @p rest stands for when @p prefix is put in front of each.
  void expand(const std::string& prefix, std::string_view rest) {
    const auto open = rest.find('[');
    if (open == std::string_view::npos) {
      if (rest.find(']') != std::string_view::npos) fail("a ']' has no '['");
      add(prefix + std::string(rest));
      return;
    }
    const auto close = rest.find(']', open);
    if (close == std::string_view::npos) fail("a '[' has no ']'");
    const std::string head = prefix + std::string(rest.substr(0, open));
    std::string_view ranges = rest.substr(open + 1, close - open - 1);
    const std::string_view tail = rest.substr(close + 1);
    for (;;) {
      const auto comma = ranges.find(',');
      expand_range(head, ranges.substr(0, comma), tail);
      if (comma == std::string_view::npos) break;
      ranges.remove_prefix(comma + 1);
    }
  }

  [[noreturn]] void fail(std::string_view cause) const {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading the node list '{}'", whole_.substr(0, 200)),
                 .cause = std::string(cause),
                 .hint = "expected a form like n[0-3,7],login"}};
  }

  std::vector<std::string> names;

 private:
  void expand_range(const std::string& head, std::string_view range, std::string_view tail) {
    const auto dash = range.find('-');
    const std::string_view first_text = range.substr(0, dash);
    const std::string_view last_text = dash == std::string_view::npos ? first_text : range.substr(dash + 1);
    const unsigned long first = number(first_text);
    const unsigned long last = number(last_text);
    if (last < first) fail(fmt::format("the range '{}' runs backwards", range));
    for (unsigned long i = first; i <= last; ++i) {
      expand(fmt::format("{}{:0{}}", head, i, first_text.size()), tail);
    }
  }
  unsigned long number(std::string_view text) const {
    unsigned long value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc{} || end != text.data() + text.size() || text.size() > 9) {
      fail(fmt::format("'{}' is not a number", text));
    }
    return value;
  }
  void add(std::string name) {
    if (name.empty()) fail("a name is empty");
    if (names.size() == limit_) fail(fmt::format("it has more than {} names", limit_));
    names.push_back(std::move(name));
  }

  std::string_view whole_;
  std::size_t limit_;
};

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view text, std::size_t limit) {
  Expander expander(text, limit);
  std::size_t start = 0;
  int depth = 0;
  int brackets = 0;  // in the current name
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']') --depth;
    if (depth < 0 || depth > 1) expander.fail("brackets do not match");
    if (i < text.size() && text[i] == '[' && ++brackets > kMostBrackets) expander.fail("a name has too many brackets");
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      expander.expand("", text.substr(start, i - start));
      start = i + 1;
      brackets = 0;
    }
  }
  return std::move(expander.names);
}

}  // namespace ddp::topology
