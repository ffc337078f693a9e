#include "step_program/last_words.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/unique_fd.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr off_t kMostBytes = off_t{256} << 10U;
constexpr std::size_t kLongestException = 300;
constexpr int kLastLines = 30;  // as ddprun

/// The rest of the line behind srun's label and torch's, if they are @p rank's or of nobody; @p named: one of them is.
bool take_labels(std::string_view& line, std::uint32_t rank, bool& named) {
  named = false;
  const std::string torchs = fmt::format("[rank{}]: ", rank);
  const auto digits = std::min(line.find_first_not_of("0123456789 "), line.size());
  if (digits > 0 && line.substr(digits, 2) == ": ") {  // "3: ", or " 3: " of several
    std::string_view number = line.substr(0, digits);
    number.remove_prefix(std::min(number.find_first_not_of(' '), number.size()));
    if (number != std::to_string(rank)) return false;
    line.remove_prefix(digits + 2);
    named = true;
  }
  if (line.starts_with(torchs)) {
    line.remove_prefix(torchs.size());
    named = true;
  } else if (line.starts_with("[rank")) {
    return false;
  }
  return true;
}

/// The line with which all tracebacks in @p text end; empty where they differ, or there is none. One that led to the
/// next
/// ("During handling of the above exception, another exception occurred") is not counted.
std::string only_exception(std::string_view text) {
  const std::string_view only = base::exception_line(text);
  for (std::string_view last = only; !last.empty(); last = base::exception_line(text)) {
    const bool led_to_another = text.ends_with("occurred:\n\n") || text.ends_with("following exception:\n\n");
    if (last != only && !led_to_another) return {};
    const auto end = static_cast<std::size_t>(last.data() - text.data());
    const std::size_t head = text.rfind("Traceback (most recent call last)", end);
    if (head == std::string_view::npos) break;
    text = text.substr(0, head);
  }
  return std::string(only.substr(0, kLongestException));
}

/// What of @p text is the rank's, and what nobody's: without their labels.
struct RankText {
  std::string own;
  std::string nobodys;
};

RankText text_of(std::string_view text, std::uint32_t rank) {
  RankText parts;
  while (!text.empty()) {
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    bool named = false;
    if (take_labels(line, rank, named)) (named ? parts.own : parts.nobodys).append(line).push_back('\n');
  }
  return parts;
}

std::string_view last_lines(std::string_view text, int count) {
  std::size_t begin = text.size();
  for (; begin > 0; --begin) {
    if (text[begin - 1] == '\n' && begin < text.size() && --count == 0) break;
  }
  return text.substr(begin);
}

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char letter) { return (letter < ' ' && letter != '\n' && letter != '\t') || letter == 0x7f; }, '?');
  return text;
}

}  // namespace

std::string exception_of(std::string_view text, std::uint32_t rank) {
  const RankText parts = text_of(text, rank);
  const std::string_view certain = base::exception_line(parts.own);
  return certain.empty() ? only_exception(parts.nobodys) : std::string(certain.substr(0, kLongestException));
}

std::string last_words_of(std::string_view text, std::uint32_t rank) {
  const RankText parts = text_of(text, rank);
  if (!parts.own.empty()) return std::string(last_lines(parts.own, kLastLines));
  if (only_exception(parts.nobodys).empty()) return {};
  const std::size_t begin = parts.nobodys.rfind("Traceback (most recent call last)");
  const std::string_view last = base::exception_line(parts.nobodys);
  const std::size_t end = static_cast<std::size_t>(last.data() - parts.nobodys.data()) + last.size();
  return begin == std::string::npos || begin > end ? std::string(last) : parts.nobodys.substr(begin, end - begin);
}

LastWords::LastWords(int fd) : fd_(fd) {
  struct stat facts {};
  if (::fstat(fd_, &facts) == 0 && S_ISREG(facts.st_mode)) begin_ = facts.st_size;
}

std::string LastWords::text() const {
  // The descriptor itself may be for writing only.
  const base::UniqueFd file{::open(fmt::format("/proc/self/fd/{}", fd_).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return {};
  const off_t begin = std::max(begin_, facts.st_size - kMostBytes);
  std::string text(static_cast<std::size_t>(std::max<off_t>(facts.st_size - begin, 0)), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::pread(file.get(), text.data() + size, text.size() - size, begin + static_cast<off_t>(size));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

std::string LastWords::exception(std::uint32_t rank) const { return printable(exception_of(text(), rank)); }

std::string LastWords::traceback(std::uint32_t rank) const { return printable(last_words_of(text(), rank)); }

}  // namespace ddp::srun_plugin
