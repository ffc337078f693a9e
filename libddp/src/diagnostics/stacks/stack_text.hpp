// What tools say about a process, made equal for processes that stand at the same place: without process ids, addresses
// and what differs between ranks, so that the stacks of many ranks can be shown as one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::diagnostics {

/// Limit of one rank's text in bytes; the rest is left out.
inline constexpr std::size_t kMaxStackBytes = std::size_t{64} << 10U;

struct ThreadStack {
  std::string name;
  std::vector<std::string> frames{};  ///< innermost first
};

/// One line per frame below one for the thread; threads with equal frames once, as "16 threads "pt_autograd_0", ...".
/// Empty without frames.
std::string format_threads(const std::vector<ThreadStack>& threads);

/// Of `gdb -batch -ex 'thread apply all bt'` and of `py-spy dump`: empty where they have no stack.
std::string stack_of_gdb(std::string_view output);
std::string stack_of_py_spy(std::string_view output);

/// What a tool that failed gives as the reason, on one line; @p output is its standard error.
std::string reason_of(std::string_view output);

}  // namespace ddp::diagnostics
