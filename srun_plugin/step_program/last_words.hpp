// The exception with which a rank has failed, from what srun has written to its standard error. The plugin does not
// stand between ranks and their output: it can be read again only where it goes to a file, as a batch script's does.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::srun_plugin {

/// "ValueError: bad loss" in @p text, if the lines of its traceback name this rank (torch's "[rank3]: ", "3: " of srun
/// --label), or if all tracebacks that name none end with this same line. Empty: there is none, or it is not certain.
std::string exception_of(std::string_view text, std::uint32_t rank);

/// The rank's own last lines, if there are such; else the traceback of that exception, where it is certain.
std::string last_words_of(std::string_view text, std::uint32_t rank);

class LastWords {
 public:
  /// What @p fd has so far is not looked at.
  explicit LastWords(int fd);
  /// exception_of() the last 256 KiB; empty where @p fd is no regular file that this user may read.
  std::string exception(std::uint32_t rank) const;
  /// last_words_of() the same, likewise.
  std::string traceback(std::uint32_t rank) const;

 private:
  std::string text() const;

  int fd_;
  off_t begin_ = 0;
};

}  // namespace ddp::srun_plugin
