#include "logs/tail_buffer.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kKeptFactor = 4;  // of the limit; room for what progress bars had overwritten

/// The line as a terminal would leave it: what follows the last "\r", but for one that belongs to the line's end.
std::string_view without_overwritten(std::string_view line) {
  std::string_view content = line;
  while (!content.empty() && (content.back() == '\n' || content.back() == '\r')) content.remove_suffix(1);
  const std::size_t last = content.rfind('\r');
  return last == std::string_view::npos ? line : line.substr(last + 1);
}

std::string_view cut_to(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  const bool at_line = text[text.size() - limit - 1] == '\n';
  text.remove_prefix(text.size() - limit);
  if (at_line) return text;
  const std::size_t newline = text.find('\n');
  if (newline != std::string_view::npos && newline + 1 < text.size()) return text.substr(newline + 1);
  while (!text.empty() && (static_cast<unsigned char>(text.front()) & 0xC0U) == 0x80U) text.remove_prefix(1);
  return text;
}

}  // namespace

void TailBuffer::append(std::string_view bytes) {
  const std::size_t limit = kKeptFactor * max_bytes_;
  const std::lock_guard lock(mutex_);
  if (bytes.size() >= limit) {
    kept_.assign(bytes.substr(bytes.size() - limit));
    return;
  }
  kept_ += bytes;
  if (kept_.size() > 2 * limit) kept_.erase(0, kept_.size() - limit);  // seldom, so that its cost does not show
}

std::string TailBuffer::text() const {
  std::string shown;
  {
    const std::lock_guard lock(mutex_);
    std::string_view rest = kept_;
    while (!rest.empty()) {
      const std::size_t newline = rest.find('\n');
      const std::string_view line = rest.substr(0, newline == std::string_view::npos ? newline : newline + 1);
      shown += without_overwritten(line);
      rest.remove_prefix(line.size());
    }
  }
  std::string_view last = cut_to(shown, max_bytes_);
  std::size_t start = last.size();
  if (last.ends_with('\n')) --start;
  for (int lines = 0; lines < max_lines_; ++lines) {
    const std::size_t newline = start == 0 ? std::string_view::npos : last.rfind('\n', start - 1);
    if (newline == std::string_view::npos) return std::string{last};
    start = newline;
  }
  return std::string{last.substr(start + 1)};
}

}  // namespace ddp::launcher
