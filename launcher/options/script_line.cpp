#include "options/script_line.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "options/option_values.hpp"

namespace ddp::launcher {
namespace {

constexpr std::string_view kMark = "\xef\xbb\xbf";

/// As much of the file as the kernel looks at (BINPRM_BUF_SIZE).
std::string head_of(const std::string& path) {
  std::array<char, 256> bytes{};
  const base::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
  const ssize_t size = file ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
  return size > 0 ? std::string(bytes.data(), static_cast<std::size_t>(size)) : std::string{};
}

bool is_missing(const std::string& file) {
  return ::access(file.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

std::string_view without_blanks(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  return text;
}

std::string line_end_hint(const std::string& path) {
  return fmt::format("its lines end as on Windows, with a carriage return (\\r): sed -i 's/\\r$//' {}",
                     printable(path));
}

}  // namespace

std::string script_line_fault(const std::string& path) {
  const std::string head = head_of(path);
  if (head.starts_with(kMark) && std::string_view(head).substr(kMark.size()).starts_with("#!"))
    return fmt::format("a byte order mark stands before its '#!': sed -i '1s/^\\xef\\xbb\\xbf//' {}", printable(path));
  if (!head.starts_with("#!")) return {};
  const auto end = head.find('\n');
  if (end == std::string::npos) return {};  // the kernel cuts it
  const std::string_view line = without_blanks(std::string_view(head).substr(2, end - 2));
  const auto blank = line.find_first_of(" \t");
  const std::string interpreter{line.substr(0, blank)};
  if (interpreter.empty()) return {};
  if (is_missing(interpreter)) {
    if (interpreter.ends_with('\r')) return line_end_hint(path);
    return fmt::format("install {} on this host, or correct the line", printable(interpreter));
  }
  // env looks for what it is told, with the carriage return; others may take it for a blank, as perl does.
  const bool env = interpreter == "env" || interpreter.ends_with("/env");
  return env && line.ends_with('\r') ? line_end_hint(path) : std::string{};
}

}  // namespace ddp::launcher
