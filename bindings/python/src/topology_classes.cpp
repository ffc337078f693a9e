// libddp.Topology, its devices, and where ranks are placed.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include <ddp/diagnostics.hpp>
#include <ddp/flight_recorder.hpp>
#include <ddp/rank_device.hpp>
#include <ddp/topology.hpp>

#include "classes.hpp"
#include "interpreter.hpp"
#include "tensor_argument.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// A set of processors as a property, ascending.
template <class Owner>
auto processors(CpuSet Owner::*set) {
  return [set](const Owner& owner) { return (owner.*set).to_vector(); };
}

std::vector<Placement> place_ranks(const Topology& topology, int ranks, const std::string& bind,
                                   std::optional<std::vector<int>> gpus) {
  return place(topology, {.num_ranks = ranks, .policy = parse_bind_policy(bind), .gpus = std::move(gpus)});
}

template <class Device>
const Device& device_of(const std::vector<Device>& devices, int index, const char* what) {
  if (index >= 0 && static_cast<std::size_t>(index) < devices.size()) return devices[static_cast<std::size_t>(index)];
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "asking for a distance",
               .cause = "there is no " + std::string(what) + " " + std::to_string(index) + "; the machine has " +
                        std::to_string(devices.size())}};
}

void add_devices(nb::module_& module) {
  nb::class_<NumaNode>(module, "NumaNode")
      .def_ro("os_index", &NumaNode::os_index)
      .def_prop_ro("cpus", processors(&NumaNode::cpus), "Ascending; may be empty.")
      .def_ro("memory_bytes", &NumaNode::memory_bytes);
  nb::class_<Gpu>(module, "Gpu")
      .def_ro("index", &Gpu::index, "By PCI address, as CUDA_DEVICE_ORDER=PCI_BUS_ID.")
      .def_prop_ro("pci", [](const Gpu& gpu) { return gpu.pci.to_string(); })
      .def_prop_ro("vendor", [](const Gpu& gpu) { return std::string(to_string(gpu.vendor)); })
      .def_ro("model", &Gpu::model)
      .def_ro("uuid", &Gpu::uuid, "Empty if unknown.")
      .def_ro("visible", &Gpu::visible, "This process may use it.")
      .def_ro("hidden_reason", &Gpu::hidden_reason)
      .def_prop_ro(
          "numa_node", [](const Gpu& gpu) { return gpu.locality.numa_node; },
          "Position in Topology.numa_nodes; -1: unknown, or near to several.");
  nb::class_<Nic>(module, "Nic")
      .def_ro("index", &Nic::index)
      .def_prop_ro("name", &Nic::name)
      .def_ro("interface", &Nic::interface, "'ib0'; empty without one of the kernel.")
      .def_ro("rdma_device", &Nic::rdma_device, "'mlx5_0'; empty without one.")
      .def_ro("rate_gbps", &Nic::rate_gbps, "Gbit/s; 0 if unknown.")
      .def_ro("usable", &Nic::usable)
      .def_ro("unusable_reason", &Nic::unusable_reason)
      .def_prop_ro("numa_node", [](const Nic& nic) { return nic.locality.numa_node; });
}

void add_placement(nb::module_& module) {
  nb::class_<Decision>(module, "Decision", "A choice, and why.")
      .def_ro("subject", &Decision::subject)
      .def_ro("chosen", &Decision::chosen)
      .def_ro("reason", &Decision::reason)
      .def_ro("alternatives", &Decision::alternatives);
  nb::class_<Placement>(module, "Placement", "What one rank of a node should use; indices are those of the Topology.")
      .def_ro("local_rank", &Placement::local_rank)
      .def_ro("gpu", &Placement::gpu)
      .def_ro("gpu_shared", &Placement::gpu_shared, "Other ranks have the same GPU.")
      .def_ro("nics", &Placement::nics, "Nearest first.")
      .def_ro("numa_nodes", &Placement::numa_nodes)
      .def_prop_ro("cpus", processors(&Placement::cpus), "Ascending; never empty.")
      .def_ro("num_cores", &Placement::num_cores)
      .def_ro("cores_shared", &Placement::cores_shared)
      .def_ro("decisions", &Placement::decisions)
      .def("__repr__", [](const Placement& placement) {
        return "<libddp.Placement of local rank " + std::to_string(placement.local_rank) + ": GPU " +
               (placement.gpu ? std::to_string(*placement.gpu) : "none") + ", processors " +
               placement.cpus.to_string() + ">";
      });
  nb::class_<RankDevice>(module, "RankDevice", "A CUDA device of this process.")
      .def_ro("index", &RankDevice::index, "What CUDA and frameworks call it here.")
      .def_ro("uuid", &RankDevice::uuid, "Empty if no driver reports it.")
      .def_ro("pci_bus_id", &RankDevice::pci_bus_id)
      .def_ro("reason", &RankDevice::reason, "Why this one.");
}

}  // namespace

void add_topology(nb::module_& module) {
  add_devices(module);
  add_placement(module);
  nb::class_<Topology>(module, "Topology", "The inventory of one machine. Immutable; from any thread.")
      .def_static("live", &Topology::live, Free(), "This machine. Takes some 10 ms. Raises SystemFailure.")
      .def_static(
          "from_xml_file",
          [](nb::handle path) {
            const std::string file = path_of(path);
            const WithoutGil released;
            return Topology::from_xml_file(file);
          },
          "path"_a, nb::sig("def from_xml_file(path: str | os.PathLike[str]) -> Topology"),
          "A file of to_xml(), lstopo or NCCL. Raises NotFound, SystemFailure, InvalidArgument.")
      .def_static("synthetic", &Topology::synthetic, "description"_a,
                  "hwloc's synthetic description: 'pack:2 numa:2 core:8 pu:2'. Raises InvalidArgument.")
      .def("to_xml", &Topology::to_xml, "hwloc's XML, for from_xml_file() on any machine.")
      .def_prop_ro("gpus", &Topology::gpus, nb::rv_policy::copy)
      .def_prop_ro("nics", &Topology::nics, nb::rv_policy::copy)
      .def_prop_ro("numa_nodes", &Topology::numa_nodes, nb::rv_policy::copy)
      .def_prop_ro("num_cores", [](const Topology& topology) { return topology.cores().size(); })
      .def_prop_ro(
          "allowed_cpus", [](const Topology& topology) { return topology.allowed_cpus().to_vector(); },
          "Processors that may be used, ascending.")
      .def_prop_ro("source", &Topology::source)
      .def_prop_ro("shape", &Topology::shape, "Equal for machines that look the same.")
      .def(
          "gpu_distance",
          [](const Topology& topology, int a, int b) {
            return std::string(to_string(
                topology.distance(device_of(topology.gpus(), a, "GPU"), device_of(topology.gpus(), b, "GPU")).path));
          },
          "a"_a, "b"_a, "Two GPUs by index: 'X', 'NVL', 'PIX', 'PXB', 'PHB', 'NODE' or 'SYS', as nvidia-smi topo -m.")
      .def(
          "nic_distance",
          [](const Topology& topology, int gpu, int nic) {
            return std::string(to_string(
                topology.distance(device_of(topology.gpus(), gpu, "GPU"), device_of(topology.nics(), nic, "NIC"))
                    .path));
          },
          "gpu"_a, "nic"_a, "The same for a GPU and a NIC.")
      .def(
          "place", &place_ranks, Free(), "ranks"_a, "bind"_a = "numa", "gpus"_a = nb::none(),
          nb::sig("def place(self, ranks: int, bind: typing.Literal['numa', 'core', 'socket', 'none'] = 'numa', gpus: "
                  "collections.abc.Sequence[int] | None = None) -> list[Placement]"),
          "What this number of ranks should use on this machine, by local rank. gpus: indices that may be used, in the "
          "frameworks' order; default: all visible ones. Raises InvalidArgument.")
      .def("__repr__", [](const Topology& topology) {
        return "<libddp.Topology of " + topology.source() + ": " + std::to_string(topology.cores().size()) +
               " cores, " + std::to_string(topology.gpus().size()) + " GPUs>";
      });
}

// libddp.EnvironmentReport and the flight recorder: what is wrong in a job, and what it did last.

void add_environment(nb::module_& module) {
  nb::class_<EnvironmentFinding>(
      module, "EnvironmentFinding",
      "Something that is wrong with environment variables, or almost certainly not intended.")
      .def_ro("rule", &EnvironmentFinding::rule, "'env-misspelt'; docs/reference/ddp-info.md lists them.")
      .def_ro("error", &EnvironmentFinding::error, "Whether it makes the job fail or hang; else it is a warning.")
      .def_ro("variable", &EnvironmentFinding::variable)
      .def_ro("text", &EnvironmentFinding::text)
      .def_ro("remedy", &EnvironmentFinding::remedy, "What to do; empty: see text.")
      .def_ro("ranks", &EnvironmentFinding::ranks, "World ranks, ascending.")
      .def("__repr__", [](const EnvironmentFinding& finding) {
        return "<libddp.EnvironmentFinding " + finding.rule + ": " + finding.text + ">";
      });

  nb::class_<EnvironmentReport>(module, "EnvironmentReport",
                                "Environments of ranks, with equal ones together. World.environment_report() has the "
                                "job's. Secrets are left out.")
      .def_static("of_process", &EnvironmentReport::of_process, Free(), "all"_a = false,
                  "This process alone, as it was started and setenv has changed it. all: also variables that have "
                  "nothing to do with training.")
      .def_ro("hosts", &EnvironmentReport::hosts, "By rank.")
      .def_ro("findings", &EnvironmentReport::findings, "Errors first.")
      .def("to_text", &EnvironmentReport::to_text, "A table for people.")
      .def("to_json", &EnvironmentReport::to_json, "docs/reference/ddp-info.md describes it.");

  module.def(
      "flight_recorder_json", &flight_recorder_json,
      "The last operations of all process groups of this process, as a JSON document. Raises InvalidArgument for a "
      "wrong DDP_FLIGHT_SIZE.");
  module.def(
      "dump_flight_recorder",
      [](nb::handle path) {
        const std::string file = path_of(path);
        const WithoutGil released;
        dump_flight_recorder(file);
      },
      "path"_a, nb::sig("def dump_flight_recorder(path: str | os.PathLike[str]) -> None"),
      "Writes that document to a file, for ddp-info flight. Raises SystemFailure.");
}

}  // namespace ddp::python
