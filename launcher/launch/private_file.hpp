// Files in the user's home folder that hold a secret: only their owner may read them, and no reader trusts one that
// another user could have read or written.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/env_table.hpp"
#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// HOME, or what the user database says; empty: none.
std::string users_home(const base::Environment& environment);

/// Opens a file for reading; an empty descriptor if there is none. Throws Error: system if it cannot be opened,
/// conflict for a symbolic link, for what is not a regular file, for another user's, and for one that others may use.
/// @param attempted of errors @param remedy what to do with a file that is not the user's own
/// @param leak_remedy the same for one that others may have read
base::UniqueFd open_private_file(const std::string& path, const std::string& attempted, const std::string& remedy,
                                 const std::string& leak_remedy);

enum class IfThere { keep, replace };

/// Writes the whole file, with mode 0600, under another name first, then gives it its own; on NFS, too. Makes its
/// folder and those above, with mode 0700. With IfThere::keep an existing file stays, also one that comes at the same
/// time. Throws Error(system). @return the file's inode
ino_t write_private_file(const std::string& path, const std::string& text, const std::string& attempted,
                         IfThere if_there);

}  // namespace ddp::launcher
