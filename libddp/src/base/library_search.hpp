// Where the dynamic loader would find a library, without loading it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/env_table.hpp"

namespace ddp::base {

struct FoundLibrary {
  std::string path;          ///< as the process sees it, without the root
  bool by_variable = false;  ///< LD_LIBRARY_PATH has its folder
};

/// For a program without a run path of its own: LD_LIBRARY_PATH, the loader's cache, the system's folders.
/// @param root before every path that is looked at
std::optional<FoundLibrary> find_library(const Environment& environment, const std::string& root,
                                         std::string_view name);

bool is_file(const std::string& root, const std::filesystem::path& path);

/// The non-empty words of a list.
std::vector<std::string> words_of(const std::string& list, const char* separators);

}  // namespace ddp::base
