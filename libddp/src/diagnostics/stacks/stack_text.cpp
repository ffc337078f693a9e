#include "diagnostics/stacks/stack_text.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include <fmt/format.h>

namespace ddp::diagnostics {
namespace {

constexpr std::size_t kMaxReasonBytes = 200;

template <class Use>
void for_each_line(std::string_view text, Use use) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    use(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

std::string_view trimmed_line(std::string_view line) {
  while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
  return line;
}

/// The name in quotation marks: `Thread 1 (Thread 0x7f.. (LWP 7) "python3"):`, `Thread 7 (idle): "MainThread"`.
std::string quoted(std::string_view line) {
  const std::size_t begin = line.find('"');
  const std::size_t end = line.rfind('"');
  return begin == end ? std::string{} : std::string{line.substr(begin + 1, end - begin - 1)};
}

/// Without "0x00007f12 in ", which gdb prints where it has no lines, even if addresses are off in newer versions.
std::string without_address(std::string_view frame) {
  const std::size_t begin = frame.find("0x");
  const std::size_t end = frame.find(" in ");
  if (begin == std::string_view::npos || end == std::string_view::npos || begin > end || begin > 8)
    return std::string{frame};
  return std::string{frame.substr(0, begin)} + std::string{frame.substr(end + 4)};
}

/// "#1  _ZN3c104funcEi () from libc10.so": the name as the source has it.
std::string demangled(const std::string& frame) {
  const std::size_t begin = frame.find(" _Z");
  if (begin == std::string::npos) return frame;
  const std::size_t end = std::min(frame.find_first_of(" @", begin + 1), frame.size());
  const std::string name = frame.substr(begin + 1, end - begin - 1);
  int status = -1;
  const std::unique_ptr<char, decltype(&std::free)> text{abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free};
  return status == 0 && text ? frame.substr(0, begin + 1) + text.get() + frame.substr(end) : frame;
}

bool has_frames(const std::vector<ThreadStack>& threads) {
  return std::any_of(threads.begin(), threads.end(), [](const ThreadStack& each) { return !each.frames.empty(); });
}

}  // namespace

std::string format_threads(const std::vector<ThreadStack>& threads) {
  if (!has_frames(threads)) return {};
  std::vector<std::pair<const ThreadStack*, int>> distinct;
  for (const ThreadStack& thread : threads) {
    const auto known = std::find_if(distinct.begin(), distinct.end(),
                                    [&](const auto& each) { return each.first->frames == thread.frames; });
    if (known == distinct.end()) {
      distinct.emplace_back(&thread, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [thread, count] : distinct) {
    const std::string name = thread->name.empty() ? std::string{} : fmt::format(" \"{}\"", thread->name);
    text += count == 1 ? fmt::format("thread{}\n", name) : fmt::format("{} threads{}, ...\n", count, name);
    for (const std::string& frame : thread->frames) text += fmt::format("  {}\n", frame);
  }
  text.pop_back();
  if (text.size() > kMaxStackBytes) {
    text.resize(text.rfind('\n', kMaxStackBytes));
    text += "\n... (too long)";
  }
  return text;
}

std::string stack_of_gdb(std::string_view output) {
  std::vector<ThreadStack> threads;
  for_each_line(output, [&](std::string_view line) {
    line = trimmed_line(line);
    if (line.starts_with("Thread ") && line.ends_with(':')) {
      threads.push_back({.name = quoted(line)});
    } else if (!threads.empty() && (line.starts_with('#') || line.starts_with("(More stack frames"))) {
      threads.back().frames.push_back(demangled(without_address(line)));
    }
  });
  return format_threads(threads);
}

std::string stack_of_py_spy(std::string_view output) {
  std::vector<ThreadStack> threads;
  for_each_line(output, [&](std::string_view line) {
    if (line.starts_with("Thread ")) {
      threads.push_back({.name = quoted(line)});
    } else if (!threads.empty() && line.starts_with("    ")) {
      threads.back().frames.emplace_back(trimmed_line(line));
    }
  });
  return format_threads(threads);
}

std::string reason_of(std::string_view output) {
  std::string_view reason;
  bool certain = false;
  for_each_line(output, [&](std::string_view line) {
    line = trimmed_line(line);
    if (line.empty() || certain) return;
    reason = line;
    for (const std::string_view word : {"permitted", "ermission", "Error:"})
      certain = certain || line.find(word) != line.npos;
  });
  std::string text{reason.substr(0, kMaxReasonBytes)};
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return letter < ' ' || letter == 0x7f; }, '?');
  return text;
}

}  // namespace ddp::diagnostics
