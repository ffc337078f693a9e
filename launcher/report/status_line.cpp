#include "report/status_line.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include "report/seconds.hpp"

namespace ddp::launcher {
namespace {

void write_terminal(const std::string& text) noexcept {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::string counted(int number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace

void StatusLine::show(const std::string& text) noexcept {
  if (!terminal_) return;
  write_terminal("\r\033[K" + text);  // ECMA-48: carriage return, erase to the end of the line
  shown_ = true;
}

void StatusLine::clear() noexcept {
  if (shown_) write_terminal("\r\033[K");
  shown_ = false;
}

std::string summary_line(int world_size, int num_nodes, std::chrono::milliseconds until_started,
                         std::chrono::milliseconds total) {
  return fmt::format("{} on {} succeeded after {:.1f} s (running after {:.2f} s)", counted(world_size, "rank"),
                     counted(num_nodes, "node"), seconds(total), seconds(until_started));
}

}  // namespace ddp::launcher
