#include "topo/json_report.hpp"

#include <nlohmann/json.hpp>

#include <ddp/version.hpp>

#include "topo/wording.hpp"

namespace ddp::tools {
namespace {

using Json = nlohmann::ordered_json;

/// null for an empty text.
Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
Json index_or_null(int index) { return index < 0 ? Json(nullptr) : Json(index); }
Json number_or_null(double number) { return number > 0 ? Json(number) : Json(nullptr); }

Json locality(const Locality& place) {
  return {{"package", index_or_null(place.package)},
          {"numa_node", index_or_null(place.numa_node)},
          {"cpus", place.cpus.to_string()},
          {"bridges", place.bridges}};
}

Json gpu_json(const Gpu& gpu) {
  Json mig = Json::array();
  for (const MigDevice& device : gpu.mig) mig.push_back({{"uuid", device.uuid}, {"name", text_or_null(device.name)}});
  return {{"index", gpu.index},
          {"pci", gpu.pci.to_string()},
          {"vendor", to_string(gpu.vendor)},
          {"model", gpu.model},
          {"uuid", text_or_null(gpu.uuid)},
          {"vendor_index", gpu.vendor_index ? Json(*gpu.vendor_index) : Json(nullptr)},
          {"os_names", gpu.os_names},
          {"mig", std::move(mig)},
          {"visible", gpu.visible},
          {"hidden_reason", text_or_null(gpu.hidden_reason)},
          {"locality", locality(gpu.locality)}};
}

Json nic_json(const Nic& nic) {
  Json ports = Json::array();
  for (const NicPort& port : nic.ports) {
    ports.push_back({{"number", port.number},
                     {"state", text_or_null(port.state)},
                     {"link_layer", text_or_null(port.link_layer)},
                     {"rate_gbps", number_or_null(port.rate_gbps)}});
  }
  return {{"index", nic.index},
          {"name", nic.name()},
          {"interface", text_or_null(nic.interface)},
          {"rdma_device", text_or_null(nic.rdma_device)},
          {"pci", nic.pci ? Json(nic.pci->to_string()) : Json(nullptr)},
          {"model", nic.model},
          {"ports", std::move(ports)},
          {"bonded", nic.bonded},
          {"rate_gbps", number_or_null(nic.rate_gbps)},
          {"fabric", nic.fabric},
          {"usable", nic.usable},
          {"unusable_reason", text_or_null(nic.unusable_reason)},
          {"virtual_function", nic.virtual_function},
          {"locality", locality(nic.locality)}};
}

Json interface_json(const NetworkInterface& interface) {
  Json addresses = Json::array();
  for (const InterfaceAddress& address : interface.addresses) {
    addresses.push_back({{"address", address.address}, {"prefix_length", address.prefix_length}});
  }
  return {{"name", interface.name},
          {"kind", to_string(interface.kind)},
          {"up", interface.up},
          {"addresses", std::move(addresses)},
          {"rate_gbps", number_or_null(interface.rate_gbps)},
          {"bond", text_or_null(interface.bond)},
          {"slaves", interface.slaves}};
}

template <class Row, class Column>
Json distances(const Topology& topology, const std::vector<Row>& rows, const std::vector<Column>& columns) {
  Json matrix = Json::array();
  for (const Row& row : rows) {
    Json line = Json::array();
    for (const Column& column : columns) line.push_back(to_string(topology.distance(row, column).path));
    matrix.push_back(std::move(line));
  }
  return matrix;
}

Json link_bandwidths(const Topology& topology) {
  Json matrix = Json::array();
  for (const Gpu& a : topology.gpus()) {
    Json line = Json::array();
    for (const Gpu& b : topology.gpus()) line.push_back(topology.link_bandwidth(a, b));
    matrix.push_back(std::move(line));
  }
  return matrix;
}

Json machine_json(const Topology& topology) {
  Json machine = {{"source", topology.source()}, {"shape", topology.shape()},   {"cpus", topology.cpus().to_string()},
                  {"packages", Json::array()},   {"numa_nodes", Json::array()}, {"cores", Json::array()},
                  {"gpus", Json::array()},       {"nics", Json::array()},       {"interfaces", Json::array()}};
  for (const Package& package : topology.packages()) {
    machine["packages"].push_back({{"os_index", index_or_null(package.os_index)}, {"cpus", package.cpus.to_string()}});
  }
  for (const NumaNode& node : topology.numa_nodes()) {
    machine["numa_nodes"].push_back({{"os_index", node.os_index},
                                     {"package", index_or_null(node.package)},
                                     {"cpus", node.cpus.to_string()},
                                     {"memory_bytes", node.memory_bytes}});
  }
  for (const Core& core : topology.cores()) {
    machine["cores"].push_back({{"numa_node", index_or_null(core.numa_node)},
                                {"package", index_or_null(core.package)},
                                {"cpus", core.cpus.to_string()}});
  }
  for (const Gpu& gpu : topology.gpus()) machine["gpus"].push_back(gpu_json(gpu));
  for (const Nic& nic : topology.nics()) machine["nics"].push_back(nic_json(nic));
  for (const NetworkInterface& interface : topology.interfaces()) {
    machine["interfaces"].push_back(interface_json(interface));
  }
  machine["distances"] = {{"gpu_gpu", distances(topology, topology.gpus(), topology.gpus())},
                          {"gpu_nic", distances(topology, topology.gpus(), topology.nics())},
                          {"gpu_link_mb_per_s", link_bandwidths(topology)}};
  return machine;
}

Json decisions_json(const std::vector<Decision>& decisions) {
  Json list = Json::array();
  for (const Decision& decision : decisions) {
    list.push_back({{"subject", decision.subject},
                    {"chosen", decision.chosen},
                    {"reason", decision.reason},
                    {"alternatives", decision.alternatives}});
  }
  return list;
}

Json settings_json(const std::vector<SettingRow>& settings, bool in_job) {
  Json list = Json::array();
  for (const SettingRow& setting : settings) {
    Json entry = {{"name", setting.name},
                  {"value", setting.value},
                  {"reason", setting.reason},
                  {"by_user", setting.by_user},
                  {"conflict", text_or_null(setting.conflict)}};
    if (in_job) {
      entry["by_user"] = nullptr;
      entry["actual"] = setting.actual ? Json(*setting.actual) : Json(nullptr);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json rank_json(const Topology& topology, const RankRow& row, bool in_job) {
  const Placement& placement = row.placement;
  Json ranks = Json::array();
  for (const RankIdentity& identity : row.ranks) {
    Json entry = {{"rank", identity.rank}, {"host", text_or_null(identity.host)}};
    if (in_job) {
      entry["interface"] = {{"name", identity.interface.name},
                            {"address", identity.interface.address},
                            {"reason", identity.interface.reason}};
    }
    ranks.push_back(std::move(entry));
  }
  Json json = {{"ranks", std::move(ranks)},
               {"local_rank", row.local_rank},
               {"gpu", placement.gpu ? Json(*placement.gpu) : Json(nullptr)},
               {"gpu_shared", placement.gpu_shared},
               {"nics", placement.nics},
               {"path", path_word(topology, placement)},
               {"numa_nodes", placement.numa_nodes},
               {"cpus", placement.cpus.to_string()},
               {"num_cores", placement.num_cores},
               {"cores_shared", placement.cores_shared},
               {"settings", settings_json(row.settings, in_job)},
               {"decisions", decisions_json(placement.decisions)}};
  if (row.actual) {
    json["actual"] = {{"binding", to_string(row.actual->state)},
                      {"sentence", row.actual->sentence},
                      {"given_cpus", row.actual->given.to_string()},
                      {"cpus", row.actual->binding.cpus.to_string()},
                      {"preferred_memory", index_or_null(row.actual->binding.preferred_memory)}};
  }
  return json;
}

}  // namespace

std::string format_json(const Report& report) {
  Json document = {{"schema", kTopoSchema},
                   {"libddp", DDP_VERSION_STRING},
                   {"job", nullptr},
                   {"bind", to_string(report.policy)},
                   {"gpu_visibility", to_string(report.gpus)},
                   {"nodes", Json::array()}};
  if (report.job) {
    document["job"] = {
        {"launcher", report.job->launcher}, {"reason", report.job->reason}, {"world_size", report.job->world_size}};
  }
  for (const NodeKind& kind : report.kinds) {
    Json node = {{"hosts", kind.hosts},
                 {"allowed_cpus", kind.allowed.to_string()},
                 {"unused_gpus", kind.unused_gpus()},
                 {"machine", machine_json(kind.topology)},
                 {"ranks", Json::array()}};
    for (const RankRow& row : kind.rows) {
      node["ranks"].push_back(rank_json(kind.topology, row, report.job.has_value()));
    }
    document["nodes"].push_back(std::move(node));
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddp::tools
