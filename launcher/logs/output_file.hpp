// A log file that drops what does not fit: a full disk must stop neither the workers nor the other files.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// Writes at once. On failure it reports the reason once and drops bytes, in whole lines where possible; once writing
/// works again, a line in the file says how many are missing. Not thread-safe.
class OutputFile {
 public:
  /// Takes a sentence for standard error.
  using Complaint = std::function<void(const std::string&)>;
  /// Pause between a failure and the next try.
  static constexpr std::chrono::milliseconds kRetryAfter{1000};

  /// Creates or empties the file, mode 0600, and makes its folders, mode 0700. Throws Error(system).
  static OutputFile create(const std::string& path, Complaint complaint,
                           std::chrono::milliseconds retry_after = kRetryAfter);

  /// @param name how the complaint calls it: "the log file '/x'"
  OutputFile(base::UniqueFd fd, std::string name, Complaint complaint,
             std::chrono::milliseconds retry_after = kRetryAfter);

  void write(std::string_view bytes);

  /// Tries once more to note what is missing, and closes the file.
  void close();

  std::uint64_t missing_bytes() const { return missing_; }

 private:
  using Clock = Deadline::Clock;
  std::string note() const;
  std::size_t write_some(std::string_view bytes, int& error);
  void put(std::string_view note, std::string_view bytes);
  void lose(std::string_view bytes);

  base::UniqueFd fd_;
  std::string name_;
  Complaint complaint_;
  std::chrono::milliseconds retry_after_;
  bool complained_ = false;
  int error_ = 0;              ///< why bytes are missing
  std::uint64_t missing_ = 0;  ///< bytes dropped since the last note
  Clock::time_point retry_at_;
  bool line_written_ = true;  ///< the file ends with a whole line
  bool line_taken_ = true;    ///< the last byte given to write() ended a line
};

/// mkdir -p with mode 0700 for each folder that is made. Throws Error(system).
void make_private_folders(const std::string& path);

}  // namespace ddp::launcher
