// Leaves the job's store at the end of a scope: a process that ends without leaving PMIx makes Slurm kill its whole
// step.
#pragma once

#include <ddp/key_value_store.hpp>

namespace ddp::tools {

struct StoreCloser {
  explicit StoreCloser(KeyValueStore& closed) : store(closed) {}
  StoreCloser(const StoreCloser&) = delete;
  StoreCloser& operator=(const StoreCloser&) = delete;
  ~StoreCloser() { store.close(); }

  KeyValueStore& store;
};

}  // namespace ddp::tools
