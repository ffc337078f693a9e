// The CUDA devices that the process sees, and how to tell them apart across processes.
#pragma once

#include <string>

namespace ddp::cuda {

/// Devices that the process sees (CUDA_VISIBLE_DEVICES); 0 is no error. Throws Error.
int device_count();

struct DeviceFacts {
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  std::string uuid;  ///< "GPU-8f6c...", "MIG-..." for a part of one: as nvidia-smi writes it. Unique in the world.
  std::string pci_bus_id;  ///< "0000:1b:00.0"
  int compute_major = 0;   ///< 9.0 is sm_90
  int compute_minor = 0;
};

/// Facts of a device by its number. Needs no context. Throws Error.
DeviceFacts device_facts(int device);

}  // namespace ddp::cuda
