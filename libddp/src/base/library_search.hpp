// Finds shared libraries as the loader would: in general, and NCCL's in the Python that runs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/env_table.hpp"

namespace ddp::base {

// What set_python_prefix() was given.

/// Empty: nothing yet. Thread-safe.
std::string python_prefix();

// Where the dynamic loader would find a library, without loading it.

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

// Where NCCL may lie, in the order in which it is looked for. A process must use one NCCL: two would each take memory
// and channels of the GPU, and a program's PyTorch brings its own.

/// What the search knows of the process.
struct NcclSurroundings {
  std::vector<std::string> loaded{};  ///< paths of the shared objects in the process
  std::string program{};              ///< the running program, as its path was given: /venv/bin/python3
  Environment environment;
  std::string root = {};  ///< before every path that is looked at: "/proc/PID/root" of a process in a container
  std::string python = "the running Python";  ///< what to call `program` where that is a Python
  std::string python_prefix = {};             ///< sys.prefix, where this process's bindings have said it

  static NcclSurroundings process();
};

struct NcclCandidate {
  std::string file;   ///< for dlopen
  std::string found;  ///< why it is one: "loaded already", "DDP_NCCL_LIBRARY"
  bool loaded;        ///< it is in the process: opening must load nothing
  bool decisive;      ///< if it cannot be opened, that is the answer
};

/// The folders in which the Python @p program, named with its path, finds packages, as far as they are there: of its
/// environment; outside virtual environments before that those of the user and of /usr/local.
std::vector<std::string> python_packages(const NcclSurroundings& surroundings, const std::string& program);

/// Loaded ones; else DDP_NCCL_LIBRARY; else beside PyTorch (loaded, or in the Python environment that is active or
/// runs); else the loader's. Those that are PyTorch's may not exist. Relative paths, which mean another file in each
/// folder that the program changes to, are left out; DDP_NCCL_LIBRARY may be one, and is not to be opened then.
std::vector<NcclCandidate> nccl_candidates(const NcclSurroundings& surroundings);

}  // namespace ddp::base
