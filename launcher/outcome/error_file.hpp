// The error files of torch.distributed.elastic's @record: JSON that a failed worker leaves for its launcher.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

namespace ddp::launcher {

/// How much of an error file is sent to the coordinator, in bytes.
inline constexpr std::size_t kMaxErrorFileBytes = std::size_t{256} << 10U;

/// What a report shows of an error file. Always UTF-8.
struct WorkerError {
  std::string message;      ///< "ValueError: bad loss"
  std::string traceback{};  ///< py_callstack; empty if there is none
  std::optional<std::chrono::system_clock::time_point> time{};
};

/// The file's content, cut at kMaxErrorFileBytes; nothing when there is none, it is empty, it is no regular file or it
/// cannot be read. Never waits for a writer.
std::optional<std::string> read_error_file(const std::string& path);

/// Parses {"message": {"message": ..., "extraInfo": {"py_callstack": ..., "timestamp": ...}}} and {"message":
/// text}, also where read_error_file() has cut them. What is no such JSON becomes the message as it is (its beginning),
/// so that nothing is hidden.
WorkerError parse_error_file(const std::string& content);

/// @p content with message.errorCode added, as torch does. Whatever the content, the result can be read by torch.
/// @param exit_code as in Python's Popen.returncode: minus the signal's number for a signal; 0 adds nothing.
std::string with_error_code(const std::string& content, int exit_code);

/// Copies a root cause's content to this launcher's own $TORCHELASTIC_ERROR_FILE, with message.errorCode added, so that
/// an outer launcher reports it. Replaces the file as a whole. Throws Error(system).
void pass_on_error_file(const std::string& content, int exit_code, const std::string& path);

}  // namespace ddp::launcher
