// A file that takes its name, and the place of the one that has it, when all of it is on the disk.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/file_place.hpp"
#include "base/unique_fd.hpp"

namespace ddp::base {

/// Lies beside its later place under a temporary name, and is removed unless committed. All throw Error(system).
class NewFile {
 public:
  /// A link that has the name is replaced. @param mode less the umask.
  NewFile(std::string path, mode_t mode);
  /// At @p place, which outlives it. @param attempted as in Error.
  NewFile(std::string attempted, const FilePlace& place, mode_t mode);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  void set_mode(mode_t mode);
  /// Appends.
  void write(std::string_view bytes);
  /// Once all is written: to the disk, then to its place.
  void commit();

 private:
  void open(mode_t mode);

  const std::string attempted_;
  const int folder_;
  const std::string path_;
  std::string name_;  ///< until the commit
  UniqueFd fd_;
};

}  // namespace ddp::base
