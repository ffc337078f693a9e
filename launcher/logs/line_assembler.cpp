#include "logs/line_assembler.hpp"

#include <algorithm>
#include <utility>

namespace ddp::launcher {
namespace {

constexpr std::size_t kLongestCharacter = 4;  // of UTF-8, in bytes

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

/// Where to cut @p text, which is longer than @p limit, so that no UTF-8 character is torn.
std::size_t cut_position(std::string_view text, std::size_t limit) {
  for (std::size_t back = 0; back < kLongestCharacter; ++back)
    if (!continues_character(text[limit - back])) return limit - back;
  return limit;  // not UTF-8
}

}  // namespace

std::span<const LinePiece> LineAssembler::take(std::string_view bytes) {
  pieces_.clear();
  joined_.clear();
  if (bytes.empty()) return pieces_;
  if (std::exchange(undecided_, false)) {
    const bool newline = bytes.front() == '\n';
    end_line({}, !newline);
    if (newline) bytes.remove_prefix(1);
  }
  // The next "\r" is looked for once, not once per line: most output has none.
  std::size_t carriage = bytes.find('\r');
  std::size_t start = 0;
  while (start < bytes.size()) {
    if (carriage != std::string_view::npos && carriage < start) carriage = bytes.find('\r', start);
    const std::size_t end = std::min(bytes.find('\n', start), carriage);
    undecided_ = end == carriage && end + 1 == bytes.size();
    if (end == std::string_view::npos || undecided_) {
      hand_out(bytes.substr(start, end - start), false);
      break;
    }
    const bool with_newline = bytes[end] == '\r' && bytes[end + 1] == '\n';
    end_line(bytes.substr(start, end - start), bytes[end] == '\r' && !with_newline);
    start = end + (with_newline ? 2 : 1);
  }
  return pieces_;
}

std::optional<std::string_view> LineAssembler::bar() const {
  if (inside_ || unfinished_.empty() || !(undecided_ || after_return_)) return std::nullopt;
  return unfinished_;
}

std::span<const LinePiece> LineAssembler::take_rest() {
  pieces_.clear();
  joined_.clear();
  undecided_ = after_return_ = false;
  if (!unfinished_.empty() || inside_) hand_out({}, true);
  return pieces_;
}

void LineAssembler::end_line(std::string_view text, bool overwritten) {
  after_return_ = overwritten;
  if (overwritten && text.empty() && unfinished_.empty() && !inside_) return;
  hand_out(text, true, overwritten);
}

void LineAssembler::hand_out(std::string_view text, bool ends, bool overwritten) {
  if (!ends && unfinished_.size() + text.size() <= kMaxLineBytes) {
    unfinished_ += text;
    return;
  }
  if (!unfinished_.empty()) {
    // Only the first line of a call has an earlier part, so nothing refers to joined_ yet.
    joined_.swap(unfinished_);
    unfinished_.clear();
    joined_ += text;
    text = joined_;
  }
  while (text.size() > kMaxLineBytes) {
    const std::size_t cut = cut_position(text, kMaxLineBytes);
    pieces_.push_back({.text = text.substr(0, cut), .begins = !inside_, .ends = false});
    inside_ = true;
    text.remove_prefix(cut);
  }
  if (!ends) {
    unfinished_ = text;
    return;
  }
  pieces_.push_back({.text = text, .begins = !inside_, .ends = true, .overwritten = overwritten && !inside_});
  inside_ = false;
}

}  // namespace ddp::launcher
