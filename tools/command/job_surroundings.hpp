// What a command of ddp-info finds around it: whether it is one rank of a job, and the program whose libraries it
// judges.
#pragma once

#include <string>

#include <ddp/key_value_store.hpp>

#include "base/env_table.hpp"
#include "base/library_search.hpp"

namespace ddp::tools {

/// Whether World::init would find a launcher. Throws as detect_launch does, with a hint of --no-job.
bool is_launched(const base::Environment& environment);

// Leaves the job's store at the end of a scope: a process that ends without leaving PMIx makes Slurm kill its whole
// step.

struct StoreCloser {
  explicit StoreCloser(KeyValueStore& closed) : store(closed) {}
  StoreCloser& operator=(StoreCloser&&) = delete;
  ~StoreCloser() { store.close(); }

  KeyValueStore& store;
};

// Whose NCCL ddp-info judges: not its own, as it loads none, but that of the program that ranks run or would run.

/// @param program that a launcher names, with its path or as PATH finds it. Where that is no Python, or is empty: the
/// Python that ddprun takes (PYTHON_EXEC, else python3 or python in PATH), if it has PyTorch.
base::NcclSurroundings surroundings_of_program(const base::Environment& environment, const std::string& program = {});

}  // namespace ddp::tools
