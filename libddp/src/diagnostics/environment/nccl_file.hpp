// The NCCL that a process has or would load, read without loading it: its version, and which environment variables it
// reads, by the names in the file itself. So the answer is right for any version and vendor's build.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/library_search.hpp"

namespace ddp::diagnostics {

struct NcclFile {
  std::string path{};                          ///< empty: none was found
  std::string found{};                         ///< why this one: "loaded already", "DDP_NCCL_LIBRARY", "the loader's"
  std::string version{};                       ///< "2.28.9+cuda13.0"; empty: not found in the file
  std::vector<std::string> names{};            ///< NCCL_* that it reads, in alphabetical order
  std::string problem{};                       ///< why names is empty
  std::vector<std::string> plugin_names = {};  ///< NCCL_* that its plugins read

  bool scanned() const { return !names.empty(); }
  bool reads(std::string_view name) const;  ///< it, or one of its plugins
};

/// Adds version and names from the constants of a library: strings that are a name as a whole, since NCCL joins prefix
/// and name when it is compiled. Never throws, whatever the bytes.
void scan_constants(std::span<const char> constants, NcclFile& file);

/// Reads the section .rodata of the ELF file. What is wrong with it is in problem. @param root before the path, for
/// another process's files: "/proc/PID/root"
NcclFile scan_nccl(const std::string& path, const std::string& root = "");

/// The first of base::nccl_candidates() that exists; for the loader's, LD_PRELOAD, LD_LIBRARY_PATH, the loader's cache
/// and the system's folders are searched. Paths in the answer are without the surroundings' root.
NcclFile find_nccl(const base::NcclSurroundings& surroundings);

// The plugins that NCCL would open: they read variables of their own, which are no mistakes.

struct FoundPlugin {
  std::string variable;     ///< that names it: "NCCL_NET_PLUGIN"
  std::string path;         ///< without the surroundings' root
  bool by_default = false;  ///< the variable is not set
};

/// Those that would be opened, by NCCL's variables for them.
std::vector<FoundPlugin> find_plugins(const base::NcclSurroundings& surroundings);

/// Adds the names of plugins for networks, tuning, profiling and environments, by NCCL's variables for them and what is
/// loaded already, and says in @p file.found which there are.
void add_plugins(NcclFile& file, const base::NcclSurroundings& surroundings);

}  // namespace ddp::diagnostics
