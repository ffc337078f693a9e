// The command line of commands that take one folder and options without values.
#pragma once

#include <set>
#include <span>
#include <string>

namespace ddp::tools {

struct FolderOptions {
  std::string folder;           ///< empty only with --help
  std::set<std::string> given;  ///< options in full; -h is --help
};

/// @param command as in ddp-info's help. @param names of all options. @param folder_hint which folder to give.
/// Throws UsageError.
FolderOptions parse_folder_options(std::span<const std::string> arguments, const std::string& command,
                                   std::span<const std::string> names, const std::string& folder_hint);

}  // namespace ddp::tools
