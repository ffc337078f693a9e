#include "topology/inventory/live_facts.hpp"

#include <ddp/error.hpp>

#include "support/error_of.hpp"
#include "support/sanitized.hpp"

namespace ddp::topology {
namespace {

using nlohmann::json;

PciAddress at(const char* text) { return PciAddress::parse(text).value(); }

LiveFacts sample() {
  LiveFacts facts;
  facts.interfaces.push_back({.interface = {.name = "ib0",
                                            .kind = InterfaceKind::hardware,
                                            .up = true,
                                            .addresses = {{"10.1.2.3", 16, false}, {"fd00::2", 64, true}},
                                            .rate_gbps = 400},
                              .pci = at("0000:3b:00.0")});
  facts.interfaces.push_back({.interface = {.name = "bond\"0<&>\n",
                                            .kind = InterfaceKind::bond,
                                            .up = false,
                                            .rate_gbps = 0.1,
                                            .slaves = {"eth0", "eth1"}},
                              .pci = std::nullopt});
  facts.interfaces.push_back(
      {.interface = {.name = "eth0", .kind = InterfaceKind::bond_slave, .up = true, .rate_gbps = 25, .bond = "bond0"},
       .pci = at("10000:af:1f.7")});
  facts.rdma.push_back({.name = "mlx5_0",
                        .pci = at("0000:3b:00.0"),
                        .ports = {{.number = 1, .state = "ACTIVE", .link_layer = "InfiniBand", .rate_gbps = 400},
                                  {.number = 2, .state = "DOWN", .link_layer = "Ethernet", .rate_gbps = 2.5}}});
  facts.rdma.push_back({.name = "siw0", .pci = std::nullopt});
  facts.virtual_functions = {at("0000:3b:00.2")};
  facts.gpus.push_back({.pci = at("0000:10:00.0"),
                        .nvml_index = 3,
                        .model = "NVIDIA H200",
                        .uuid = "GPU-3",
                        .mig = {{.uuid = "MIG-1", .name = "1g.18gb"}},
                        .visible = true});
  facts.gpus.push_back({.pci = at("0000:20:00.0"),
                        .nvml_index = std::nullopt,
                        .visible = false,
                        .hidden_reason = "no driver is bound to it"});
  facts.gpu_links.push_back({.a = at("0000:10:00.0"), .b = at("0000:20:00.0"), .mb_per_s = 450000});
  return facts;
}

/// The sample as JSON after @p change, as text.
std::string changed(const std::function<void(json&)>& change) {
  json value = json::parse(to_json(sample()));
  change(value);
  return value.dump();
}

/// What the Error says; fails the test if there is none.
std::string problem(const std::string& text) {
  const auto error = ddp::test::error_of([&] { facts_from_json(text); });
  EXPECT_TRUE(error && error->code() == ErrorCode::invalid_argument) << text.substr(0, 500);
  return error ? error->what() : "";
}

TEST(LiveFactsJson, ReadingGivesBackWhatWasWritten) {
  const LiveFacts before = sample();
  const LiveFacts after = facts_from_json(to_json(before));
  ASSERT_EQ(after.interfaces.size(), before.interfaces.size());
  for (std::size_t i = 0; i < before.interfaces.size(); ++i) {
    const NetworkInterface& a = before.interfaces[i].interface;
    const NetworkInterface& b = after.interfaces[i].interface;
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(a.up, b.up);
    EXPECT_EQ(a.addresses, b.addresses);
    EXPECT_EQ(a.rate_gbps, b.rate_gbps);
    EXPECT_EQ(a.bond, b.bond);
    EXPECT_EQ(a.slaves, b.slaves);
    EXPECT_EQ(before.interfaces[i].pci, after.interfaces[i].pci);
  }
  ASSERT_EQ(after.rdma.size(), 2U);
  EXPECT_EQ(after.rdma[0].name, "mlx5_0");
  EXPECT_EQ(after.rdma[0].pci, at("0000:3b:00.0"));
  EXPECT_FALSE(after.rdma[1].pci);
  ASSERT_EQ(after.rdma[0].ports.size(), 2U);
  EXPECT_EQ(after.rdma[0].ports[1].number, 2);
  EXPECT_EQ(after.rdma[0].ports[1].state, "DOWN");
  EXPECT_EQ(after.rdma[0].ports[1].link_layer, "Ethernet");
  EXPECT_EQ(after.rdma[0].ports[1].rate_gbps, 2.5);
  EXPECT_EQ(after.virtual_functions, before.virtual_functions);
  ASSERT_EQ(after.gpus.size(), 2U);
  EXPECT_EQ(after.gpus[0].pci, at("0000:10:00.0"));
  EXPECT_EQ(after.gpus[0].nvml_index, 3);
  EXPECT_EQ(after.gpus[0].model, "NVIDIA H200");
  EXPECT_EQ(after.gpus[0].uuid, "GPU-3");
  ASSERT_EQ(after.gpus[0].mig.size(), 1U);
  EXPECT_EQ(after.gpus[0].mig[0].uuid, "MIG-1");
  EXPECT_EQ(after.gpus[0].mig[0].name, "1g.18gb");
  EXPECT_TRUE(after.gpus[0].visible);
  EXPECT_FALSE(after.gpus[1].visible);
  EXPECT_FALSE(after.gpus[1].nvml_index);
  EXPECT_EQ(after.gpus[1].hidden_reason, "no driver is bound to it");
  ASSERT_EQ(after.gpu_links.size(), 1U);
  EXPECT_EQ(after.gpu_links[0].a, at("0000:10:00.0"));
  EXPECT_EQ(after.gpu_links[0].b, at("0000:20:00.0"));
  EXPECT_EQ(after.gpu_links[0].mb_per_s, 450000);
  EXPECT_EQ(to_json(after), to_json(before));
}

TEST(LiveFactsJson, EveryKindOfInterfaceCanBeReadBack) {
  for (int number = 0; number <= static_cast<int>(InterfaceKind::other); ++number) {
    LiveFacts facts = sample();
    facts.interfaces[0].interface.kind = static_cast<InterfaceKind>(number);
    EXPECT_EQ(static_cast<int>(facts_from_json(to_json(facts)).interfaces[0].interface.kind), number);
  }
}

TEST(LiveFactsJson, NothingKnownIsWrittenAndRead) {
  const LiveFacts facts = facts_from_json(to_json({}));
  EXPECT_TRUE(facts.interfaces.empty() && facts.rdma.empty() && facts.virtual_functions.empty() && facts.gpus.empty() &&
              facts.gpu_links.empty());
}

TEST(LiveFactsJson, IsAsciiWhateverTheNames) {
  LiveFacts facts = sample();
  facts.interfaces[0].interface.name = "b\xc3\xbcro";
  facts.interfaces[1].interface.name = "\xff\xfe";  // the kernel allows it; it is no UTF-8
  const std::string text = to_json(facts);
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 127; })) << text;
  const LiveFacts after = facts_from_json(text);
  EXPECT_EQ(after.interfaces[0].interface.name, "b\xc3\xbcro");
  EXPECT_EQ(to_json(after), text);
}

TEST(LiveFactsJson, TextThatIsNoJsonIsRejected) {
  const std::string whole = to_json(sample());
  for (const std::string& text : {std::string{}, std::string{"  "}, std::string{"<xml/>"}, whole + "x", "[" + whole,
                                  std::string("\0", 1), std::string{"\xff"}, std::string{"{\"version\":1e999}"}}) {
    EXPECT_THAT(problem(text), HasSubstr("not JSON"));
  }
  for (std::size_t size = 0; size < whole.size(); size += 7) problem(whole.substr(0, size));
}

TEST(LiveFactsJson, OtherVersionsAreRejected) {
  for (const json& version : {json(0), json(2), json("1"), json(nullptr), json::array({1})}) {
    EXPECT_THAT(problem(changed([&](json& value) { value["version"] = version; })), HasSubstr("version"));
  }
  EXPECT_THAT(problem("[]"), HasSubstr("version"));
  EXPECT_THAT(problem("{}"), HasSubstr("version"));
  EXPECT_THAT(problem("1"), HasSubstr("version"));
}

TEST(LiveFactsJson, MissingUnknownAndWrongMembersAreNamed) {
  const std::pair<std::function<void(json&)>, const char*> changes[] = {
      {[](json& v) { v.erase("gpus"); }, "has no 'gpus'"},
      {[](json& v) { v["more"] = 1; }, "not known"},
      {[](json& v) { v["gpus"] = json::object(); }, "gpus is not an array"},
      {[](json& v) { v["gpus"][1] = 7; }, "gpus[1] is not an object"},
      {[](json& v) { v["gpus"][1].erase("pci"); }, "gpus[1] has no 'pci'"},
      {[](json& v) { v["gpus"][1]["pci"] = "3b:00"; }, "gpus[1].pci is not a PCI address"},
      {[](json& v) { v["gpus"][1]["pci"] = nullptr; }, "gpus[1].pci is not a text"},
      {[](json& v) { v["gpus"][0]["nvml_index"] = -1; }, "nvml_index is not a whole number"},
      {[](json& v) { v["gpus"][0]["nvml_index"] = 1.5; }, "nvml_index is not a whole number"},
      {[](json& v) { v["gpus"][0]["nvml_index"] = 1ULL << 63; }, "nvml_index is not a whole number"},
      {[](json& v) { v["gpus"][0]["visible"] = "yes"; }, "gpus[0].visible is not true or false"},
      {[](json& v) { v["gpus"][0]["mig"][0]["name"] = 1; }, "gpus[0].mig[0].name is not a text"},
      {[](json& v) { v["interfaces"][2]["kind"] = "warp"; }, "interfaces[2].kind is not a kind of interface"},
      {[](json& v) { v["interfaces"][2]["kind"] = 3; }, "interfaces[2].kind is not a text"},
      {[](json& v) { v["interfaces"][0]["up"] = 1; }, "interfaces[0].up is not true or false"},
      {[](json& v) { v["interfaces"][0]["rate_gbps"] = -1; }, "interfaces[0].rate_gbps is not a rate"},
      {[](json& v) { v["interfaces"][0]["rate_gbps"] = 1e300; }, "interfaces[0].rate_gbps is not a rate"},
      {[](json& v) { v["interfaces"][0]["rate_gbps"] = "4"; }, "interfaces[0].rate_gbps is not a number"},
      {[](json& v) { v["interfaces"][0]["slaves"] = "eth0"; }, "interfaces[0].slaves is not an array"},
      {[](json& v) { v["interfaces"][0]["pci"] = "somewhere"; }, "interfaces[0].pci is not a PCI address"},
      {[](json& v) { v["rdma"][0]["ports"][1]["number"] = 0; }, "rdma[0].ports[1].number is not a whole number"},
      {[](json& v) { v["rdma"][0]["ports"][1]["number"] = 256; }, "rdma[0].ports[1].number is not a whole number"},
      {[](json& v) { v["virtual_functions"][0] = 1; }, "virtual_functions[0] is not a text"},
      {[](json& v) { v["gpu_links"][0]["b"] = ""; }, "gpu_links[0].b is not a PCI address"},
      {[](json& v) { v["gpu_links"][0]["mb_per_s"] = nullptr; }, "gpu_links[0].mb_per_s is not a number"},
  };
  for (const auto& [change, expected] : changes) EXPECT_THAT(problem(changed(change)), HasSubstr(expected));
}

TEST(LiveFactsJson, AddressesMustBeNumericWithAPrefixThatFits) {
  for (const char* text : {"", "10.0.0.1", "10.0.0.1/", "10.0.0.1/33", "10.0.0.1/-1", "10.0.0.1/8x", "10.0.0/8",
                           "fd00::1/129", "fd00::1%eth0/64", "host/24", "/24"}) {
    EXPECT_THAT(problem(changed([&](json& v) { v["interfaces"][0]["addresses"][0] = text; })),
                HasSubstr("interfaces[0].addresses[0] is not an address"))
        << text;
  }
  EXPECT_NO_THROW(facts_from_json(changed([](json& v) { v["interfaces"][0]["addresses"][0] = "::/0"; })));
}

TEST(LiveFactsJson, EndlessTextIsRejectedUnread) {
  const std::string open(64U << 20U, '[');
  EXPECT_THAT(problem(open), HasSubstr("are allowed"));
  EXPECT_THAT(problem(std::string(::ddp::test::cases(1 << 20), '[')), HasSubstr("not JSON"));
}

TEST(CollectLiveFacts, ThisMachineHasItsLoopback) {
  const LiveFacts facts = collect_live_facts();
  const auto loopback = std::find_if(facts.interfaces.begin(), facts.interfaces.end(),
                                     [](const InterfaceFact& fact) { return fact.interface.name == "lo"; });
  ASSERT_NE(loopback, facts.interfaces.end());
  EXPECT_EQ(loopback->interface.kind, InterfaceKind::loopback);
  EXPECT_TRUE(loopback->interface.up);
  EXPECT_THAT(loopback->interface.addresses, testing::Contains(InterfaceAddress{"127.0.0.1", 8, false}));
  EXPECT_FALSE(loopback->pci);
  for (const GpuFact& gpu : facts.gpus) EXPECT_EQ(gpu.visible, gpu.hidden_reason.empty());
  EXPECT_EQ(to_json(facts_from_json(to_json(facts))), to_json(facts));
}

}  // namespace
}  // namespace ddp::topology
