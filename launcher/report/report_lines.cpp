// Lays out the lines of a failure report.
#include "report/report_lines.hpp"

#include <algorithm>

namespace ddp::launcher {
namespace {

constexpr std::size_t kWidestBorder = 60;

/// Calls @p use with each line of @p text, without its newline. An empty text is one empty line.
template <class Use>
void for_each_line(std::string_view text, Use use) {
  while (true) {
    const std::size_t end = text.find('\n');
    use(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

/// Whether a byte continues a UTF-8 character.
bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; }

}  // namespace

void ReportLines::field(std::string_view name, std::string_view text) {
  bool first = true;
  for_each_line(text, [&](std::string_view line) {
    if (first) {
      add("  {:<10}: {}", name, line);
    } else {
      add("  {}", line);
    }
    first = false;
  });
}

void ReportLines::indented(std::string_view indent, std::string_view text) {
  for_each_line(text, [&](std::string_view line) { add("{}{}", indent, line); });
}

std::string ReportLines::text() {
  std::size_t width = 0;
  for (const std::string& line : lines_) width = std::max(width, line.size());
  for (const std::size_t index : borders_) lines_[index].assign(std::min(width, kWidestBorder), lines_[index].front());
  std::string all;
  for (const std::string& line : lines_) all += line + "\n";
  return all;
}

std::string shortened(std::string_view text, std::size_t limit) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  if (text.size() <= limit) return std::string{text};
  std::string_view head = text.substr(0, limit / 4);
  std::string_view tail = text.substr(text.size() - (limit - limit / 4));
  if (const auto end = head.rfind('\n'); end != std::string_view::npos) {
    head = head.substr(0, end);
  } else {
    while (!head.empty() && continues(text[head.size()])) head.remove_suffix(1);
  }
  if (const auto end = tail.find('\n'); end != std::string_view::npos) {
    tail.remove_prefix(end + 1);
  } else {
    while (!tail.empty() && continues(tail.front())) tail.remove_prefix(1);
  }
  return fmt::format("{}\n... {} bytes left out ...\n{}", head, text.size() - head.size() - tail.size(), tail);
}

std::string plural(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace ddp::launcher
