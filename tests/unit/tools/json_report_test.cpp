// The document has the fields that docs/ddp-info.md promises, with those types.
#include "topo/json_report.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using nlohmann::json;

json document(const Report& report) { return json::parse(format_json(report)); }

/// The names of the members, without order.
std::set<std::string> members(const json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

using Names = std::set<std::string>;

TEST(JsonReport, HasTheDocumentedMembers) {
  const json top = document(test::sample_report());
  EXPECT_EQ(members(top), (Names{"schema", "libddp", "job", "bind", "gpu_visibility", "nodes"}));
  EXPECT_EQ(top["schema"], "ddp-info-topo/1");
  EXPECT_TRUE(top["job"].is_null());
  const json& node = top["nodes"][0];
  EXPECT_EQ(members(node), (Names{"hosts", "allowed_cpus", "unused_gpus", "machine", "ranks"}));
  const json& machine = node["machine"];
  EXPECT_EQ(members(machine), (Names{"source", "shape", "cpus", "packages", "numa_nodes", "cores", "gpus", "nics",
                                     "interfaces", "distances"}));
  EXPECT_EQ(members(machine["packages"][0]), (Names{"os_index", "cpus"}));
  EXPECT_EQ(members(machine["numa_nodes"][0]), (Names{"os_index", "package", "cpus", "memory_bytes"}));
  EXPECT_EQ(members(machine["cores"][0]), (Names{"numa_node", "package", "cpus"}));
  EXPECT_EQ(members(machine["gpus"][0]), (Names{"index", "pci", "vendor", "model", "uuid", "vendor_index", "os_names",
                                                "mig", "visible", "hidden_reason", "locality"}));
  EXPECT_EQ(members(machine["nics"][0]),
            (Names{"index", "name", "interface", "rdma_device", "pci", "model", "ports", "bonded", "rate_gbps",
                   "fabric", "usable", "unusable_reason", "virtual_function", "locality"}));
  EXPECT_EQ(members(machine["gpus"][0]["locality"]), (Names{"package", "numa_node", "cpus", "bridges"}));
  EXPECT_EQ(members(machine["distances"]), (Names{"gpu_gpu", "gpu_nic", "gpu_link_mb_per_s"}));
  const json& rank = node["ranks"][0];
  EXPECT_EQ(members(rank), (Names{"ranks", "local_rank", "gpu", "gpu_shared", "nics", "path", "numa_nodes", "cpus",
                                  "num_cores", "cores_shared", "settings", "decisions"}));
  EXPECT_EQ(members(rank["ranks"][0]), (Names{"rank", "host"}));
  EXPECT_EQ(members(rank["settings"][0]), (Names{"name", "value", "reason", "by_user", "conflict"}));
  EXPECT_EQ(members(rank["decisions"][0]), (Names{"subject", "chosen", "reason", "alternatives"}));
}

TEST(JsonReport, SaysWhatTheTableSays) {
  const json node = document(test::sample_report())["nodes"][0];
  const json& rank = node["ranks"][3];
  EXPECT_EQ(rank["gpu"], 3);
  EXPECT_EQ(rank["nics"], json::array({2}));
  EXPECT_EQ(rank["path"], "PIX");
  EXPECT_EQ(rank["cpus"], "6-7,14-15");
  EXPECT_EQ(rank["settings"][1]["by_user"], true);
  EXPECT_EQ(rank["settings"][1]["conflict"], "this rank has only 4 hardware threads");
  EXPECT_TRUE(rank["settings"][0]["conflict"].is_null());
  EXPECT_EQ(rank["decisions"][0]["alternatives"][0], "ib0: SYS, further than PIX");
  const json& machine = node["machine"];
  EXPECT_EQ(machine["gpus"].size(), 4U);
  EXPECT_EQ(machine["distances"]["gpu_gpu"][0], json::array({"X", "PIX", "SYS", "SYS"}));
  EXPECT_EQ(machine["distances"]["gpu_nic"][2], json::array({"SYS", "SYS", "PIX"}));
  EXPECT_EQ(machine["nics"][1]["usable"], false);
  EXPECT_TRUE(machine["nics"][1]["rate_gbps"].is_null());
  EXPECT_EQ(machine["nics"][1]["unusable_reason"], "it is down");
  EXPECT_TRUE(machine["gpus"][0]["uuid"].is_null());
}

TEST(JsonReport, OfAJob) {
  const json top = document(test::sample_job());
  EXPECT_EQ(members(top["job"]), (Names{"launcher", "reason", "world_size"}));
  EXPECT_EQ(top["job"]["world_size"], 12);
  const json& node = top["nodes"][0];
  EXPECT_EQ(node["hosts"], json::array({"n1", "n2", "n3"}));
  const json& rank = node["ranks"][0];
  EXPECT_EQ(rank["ranks"][2]["rank"], 8);
  EXPECT_EQ(members(rank["ranks"][2]["interface"]), (Names{"name", "address", "reason"}));
  EXPECT_EQ(members(rank["actual"]), (Names{"binding", "sentence", "given_cpus", "cpus", "preferred_memory"}));
  EXPECT_EQ(rank["actual"]["binding"], "not_bound");
  EXPECT_TRUE(rank["actual"]["preferred_memory"].is_null());
  EXPECT_EQ(node["ranks"][3]["actual"]["preferred_memory"], 1);
  EXPECT_TRUE(rank["settings"][0]["actual"].is_null());
  EXPECT_TRUE(rank["settings"][0]["by_user"].is_null());
  EXPECT_EQ(node["ranks"][1]["settings"][1]["actual"], "2");
}

TEST(JsonReport, TextThatIsNoUtf8IsReplaced) {
  Report report = test::sample_report();
  Topology::Parts parts = test::two_package_parts();
  parts.gpus[0].model =
      "a\xff"
      "b\"\n";
  report.kinds[0].topology = Topology::from_parts(std::move(parts));
  EXPECT_EQ(document(report)["nodes"][0]["machine"]["gpus"][0]["model"],
            "a\xef\xbf\xbd"
            "b\"\n");
}

}  // namespace
}  // namespace ddp::tools
