// The user's key file, by which ddpruns of one user know each other where nothing else tells them: nodes see it through
// a shared home folder, or get a copy.
#pragma once

#include <string>

#include "base/env_table.hpp"
#include "control/secret.hpp"

namespace ddp::launcher {

/// "$XDG_CONFIG_HOME/libddp/rendezvous.key", or below "$HOME/.config". Throws Error(unavailable) without a home folder.
std::string key_file_path(const base::Environment& environment);

/// Reads the file: 64 hexadecimal digits. Makes it, with mode 0600 and random, where there is none; all that do so at
/// the same time, on any host, get the same key. Throws Error: system when it cannot be read or made; conflict when
/// another user owns it, when others may read or write it, or when its content is none.
control::Secret read_key_file(const std::string& path);

}  // namespace ddp::launcher
