// NCCL's topology files, which users write by hand. Whatever the text, the reader throws Error(invalid_argument) or
// gives parts that fit together: every GPU and NIC has processors and a distance to every other.
#include <ddp/topology.hpp>

#include "fuzz/fuzz.hpp"
#include "topology/inventory/nccl_xml.hpp"

namespace {

void check(const ddp::Topology& machine) {
  require(!machine.cores().empty());
  for (const ddp::Gpu& gpu : machine.gpus()) {
    require(!gpu.locality.cpus.empty() && machine.cpus().contains(gpu.locality.cpus));
    for (const ddp::Gpu& other : machine.gpus()) {
      require(gpu.index >= other.index || gpu.pci < other.pci);
      require(machine.distance(gpu, other) == machine.distance(other, gpu));
    }
    for (const ddp::Nic& nic : machine.nics()) machine.distance(gpu, nic);
  }
  for (const ddp::Nic& nic : machine.nics()) require(!nic.name().empty() && !nic.locality.cpus.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  ddp::topology::looks_like_nccl_xml(text);
  ddp::Topology::Parts parts;
  try {
    parts = ddp::topology::parts_from_nccl_xml(text, "the text");
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::invalid_argument);
    return 0;
  }
  check(ddp::Topology::from_parts(std::move(parts)));  // throws if they do not fit
  return 0;
}
