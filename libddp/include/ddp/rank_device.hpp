// The GPU that belongs to a rank.
#pragma once

#include <string>

namespace ddp {

/// A CUDA device of a process.
struct RankDevice {
  int index = 0;           ///< index that CUDA and frameworks use in this process: Device{DeviceType::cuda, index}
  std::string uuid;        ///< "GPU-8f6c...", "MIG-..." for a partition; empty if no driver reports it
  std::string pci_bus_id;  ///< "0000:3b:00.0"; empty if CUDA numbers GPUs of different models in an order of its own
  std::string reason;      ///< one sentence: why this one
};

}  // namespace ddp
