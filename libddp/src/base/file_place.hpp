// Where a file that is to be written lies. Whoever may write to a folder above it can put a link there, so links are
// followed as the kernel's fs.protected_symlinks does in /tmp, in all folders.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "base/unique_fd.hpp"

namespace ddp::base {

/// A name in an open folder, whatever their path means by now.
struct FilePlace {
  UniqueFd folder{};
  std::string name{};
  std::optional<struct stat> there{};  ///< of what has the name; nothing: nothing has
  bool is_open_file = false;           ///< links lead to a name of names_open_file(), which is to be opened by its path
};

enum class LastLink { followed, refused };

/// Follows links that belong to this user, to root, or to the owner of the folder in which they are. Throws
/// Error(invalid_argument) for another's, Error(system) for all but a last name that is not there. @p attempted: as in
/// Error. @param last whether the last name may be a link.
FilePlace find_place(const std::string& attempted, const std::string& path, LastLink last = LastLink::followed);

/// Opens @p path for lines of a log, mode 0666 less the umask: at its end, non-blocking. Throws as find_place() does,
/// also for a pipe of another user.
UniqueFd open_to_append(const std::string& attempted, const std::string& path);

/// Whether @p path is a standard stream or another open file, by its name in /dev or /proc.
bool names_open_file(const std::string& path);

/// Throws Error(invalid_argument) if what has the name, a pipe or a socket, is neither this user's, nor root's, nor of
/// the owner of its folder. @param facts of it
void check_special_file(const std::string& attempted, const FilePlace& place, const struct stat& facts);

}  // namespace ddp::base
