#include "topology/inventory/live_facts.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "topology/inventory/gpu_facts.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/inventory/nvml.hpp"

namespace ddp::topology {
namespace {

// A driver that must first initialize eight GPUs (no persistence daemon) needs some 10 s.
constexpr std::chrono::seconds kNvmlPatience{15};

std::vector<RawInterface> interfaces_here() {
  try {
    return list_raw_interfaces();
  } catch (const Error& error) {
    base::log(base::LogLevel::warning, "{}", error.what());
    return {};
  }
}

}  // namespace

LiveFacts collect_live_facts() {
  const std::filesystem::path root = "/";
  const std::filesystem::path sys = root / "sys";
  GpuFacts gpus = collect_gpu_facts(root, ask_nvml(Deadline::after(kNvmlPatience)));
  return {.interfaces = read_interfaces(sys, interfaces_here()),
          .rdma = read_rdma_devices(sys),
          .virtual_functions = read_virtual_functions(sys),
          .gpus = std::move(gpus.gpus),
          .gpu_links = std::move(gpus.links)};
}

// Facts as JSON in recorded machines. The reader trusts nothing.

namespace {

using nlohmann::json;

constexpr int kVersion = 1;
// An interface takes some 200 bytes; a node with many containers has some 1000 interfaces. Parsed text takes up to 40
// times its size.
constexpr std::size_t kLargestBytes = 4U << 20U;
constexpr int kLargestPort = 255;  // InfiniBand numbers ports with 8 bits
constexpr int kLargestGpuIndex = 65535;
constexpr double kLargestRate = 1e15;

constexpr std::array kKinds = {InterfaceKind::hardware,   InterfaceKind::loopback, InterfaceKind::bond,
                               InterfaceKind::bond_slave, InterfaceKind::vlan,     InterfaceKind::bridge,
                               InterfaceKind::host_only,  InterfaceKind::tunnel,   InterfaceKind::other};

json to_value(const std::optional<PciAddress>& address) { return address ? json(address->to_string()) : json(); }

json to_value(const InterfaceFact& fact) {
  const NetworkInterface& interface = fact.interface;
  json addresses = json::array();
  for (const InterfaceAddress& address : interface.addresses) {
    addresses.push_back(fmt::format("{}/{}", address.address, address.prefix_length));
  }
  return {{"name", interface.name},     {"kind", to_string(interface.kind)}, {"up", interface.up},
          {"addresses", addresses},     {"rate_gbps", interface.rate_gbps},  {"bond", interface.bond},
          {"slaves", interface.slaves}, {"pci", to_value(fact.pci)}};
}

json to_value(const RdmaFact& fact) {
  json ports = json::array();
  for (const NicPort& port : fact.ports) {
    ports.push_back({{"number", port.number},
                     {"state", port.state},
                     {"link_layer", port.link_layer},
                     {"rate_gbps", port.rate_gbps}});
  }
  return {{"name", fact.name}, {"pci", to_value(fact.pci)}, {"ports", ports}};
}

json to_value(const GpuFact& fact) {
  json mig = json::array();
  for (const MigDevice& part : fact.mig) mig.push_back({{"uuid", part.uuid}, {"name", part.name}});
  return {{"pci", fact.pci.to_string()},
          {"nvml_index", fact.nvml_index ? json(*fact.nvml_index) : json()},
          {"model", fact.model},
          {"uuid", fact.uuid},
          {"mig", mig},
          {"visible", fact.visible},
          {"hidden_reason", fact.hidden_reason}};
}

json to_value(const GpuLinkFact& fact) {
  return {{"a", fact.a.to_string()}, {"b", fact.b.to_string()}, {"mb_per_s", fact.mb_per_s}};
}

json to_value(const PciAddress& address) { return address.to_string(); }

template <class Fact>
json to_array(const std::vector<Fact>& facts) {
  json array = json::array();
  for (const Fact& fact : facts) array.push_back(to_value(fact));
  return array;
}

[[noreturn]] void reject(std::string cause) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "reading the recorded state of network interfaces and GPUs",
               .cause = std::move(cause),
               .hint = "record the machine again with this version: 'ddp-info topo --export FILE'"}};
}

/// A JSON value with its place, for messages: "interfaces[2].kind".
class Value {
 public:
  Value(const json& value, std::string place) : value_(value), place_(std::move(place)) {}

  /// The members of an object, which must be exactly @p names.
  const Value& with_members(std::initializer_list<const char*> names) const {
    if (!value_.is_object()) wrong("an object");
    for (const char* name : names) {
      if (!value_.contains(name)) reject(fmt::format("{} has no '{}'", place_, name));
    }
    for (const auto& [name, member] : value_.items()) {
      bool known = false;
      for (const char* expected : names) known = known || name == expected;
      if (!known) reject(fmt::format("{} has a member that is not known", place_));
    }
    return *this;
  }
  Value member(const char* name) const { return {value_.at(name), fmt::format("{}.{}", place_, name)}; }

  bool is_null() const { return value_.is_null(); }
  std::string text() const {
    if (!value_.is_string()) wrong("a text");
    return value_.get<std::string>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) wrong("true or false");
    return value_.get<bool>();
  }
  int integer(int smallest, int largest) const {
    const std::string wanted = fmt::format("a whole number from {} to {}", smallest, largest);
    if (!value_.is_number_integer()) wrong(wanted);
    if (value_.is_number_unsigned() && value_.get<std::uint64_t>() > static_cast<std::uint64_t>(largest)) wrong(wanted);
    const auto number = value_.get<std::int64_t>();
    if (number < smallest || number > largest) wrong(wanted);
    return static_cast<int>(number);
  }
  double rate() const {
    if (!value_.is_number()) wrong("a number");
    const auto number = value_.get<double>();
    if (!std::isfinite(number) || number < 0 || number > kLargestRate) wrong("a rate");
    return number;
  }
  PciAddress pci() const {
    const auto address = PciAddress::parse(text());
    if (!address) wrong("a PCI address");
    return *address;
  }
  std::optional<PciAddress> optional_pci() const { return is_null() ? std::nullopt : std::optional(pci()); }
  InterfaceKind kind() const {
    const std::string word = text();
    for (const InterfaceKind kind : kKinds) {
      if (word == to_string(kind)) return kind;
    }
    wrong("a kind of interface that is known");
  }
  InterfaceAddress address() const {
    const std::string both = text();
    const auto slash = both.find('/');
    InterfaceAddress address;
    address.address = both.substr(0, slash);
    std::array<unsigned char, sizeof(in6_addr)> bits{};
    address.ipv6 = address.address.find(':') != std::string::npos;
    constexpr int kIpv4Bits = 32;
    constexpr int kIpv6Bits = 128;
    const std::string_view length = slash == std::string::npos ? "" : std::string_view{both}.substr(slash + 1);
    const auto [end, status] = std::from_chars(length.data(), length.data() + length.size(), address.prefix_length);
    if (address.address.find('\0') != std::string::npos ||
        inet_pton(address.ipv6 ? AF_INET6 : AF_INET, address.address.c_str(), bits.data()) != 1 ||
        status != std::errc{} || end != length.data() + length.size() || address.prefix_length < 0 ||
        address.prefix_length > (address.ipv6 ? kIpv6Bits : kIpv4Bits)) {
      wrong("an address with its prefix length");
    }
    return address;
  }

  /// Each element of an array, read by @p read.
  template <class Read>
  auto each(Read&& read) const {
    if (!value_.is_array()) wrong("an array");
    std::vector<decltype(read(*this))> elements;
    for (std::size_t i = 0; i < value_.size(); ++i) {
      elements.push_back(read(Value{value_[i], fmt::format("{}[{}]", place_, i)}));
    }
    return elements;
  }

 private:
  [[noreturn]] void wrong(std::string_view wanted) const { reject(fmt::format("{} is not {}", place_, wanted)); }

  const json& value_;
  std::string place_;
};

InterfaceFact read_interface(const Value& value) {
  value.with_members({"name", "kind", "up", "addresses", "rate_gbps", "bond", "slaves", "pci"});
  InterfaceFact fact;
  fact.interface.name = value.member("name").text();
  fact.interface.kind = value.member("kind").kind();
  fact.interface.up = value.member("up").boolean();
  fact.interface.addresses = value.member("addresses").each([](const Value& address) { return address.address(); });
  fact.interface.rate_gbps = value.member("rate_gbps").rate();
  fact.interface.bond = value.member("bond").text();
  fact.interface.slaves = value.member("slaves").each([](const Value& slave) { return slave.text(); });
  fact.pci = value.member("pci").optional_pci();
  return fact;
}

NicPort read_port(const Value& value) {
  value.with_members({"number", "state", "link_layer", "rate_gbps"});
  return {.number = value.member("number").integer(1, kLargestPort),
          .state = value.member("state").text(),
          .link_layer = value.member("link_layer").text(),
          .rate_gbps = value.member("rate_gbps").rate()};
}

RdmaFact read_rdma(const Value& value) {
  value.with_members({"name", "pci", "ports"});
  return {.name = value.member("name").text(),
          .pci = value.member("pci").optional_pci(),
          .ports = value.member("ports").each(read_port)};
}

MigDevice read_mig(const Value& value) {
  value.with_members({"uuid", "name"});
  return {.uuid = value.member("uuid").text(), .name = value.member("name").text()};
}

GpuFact read_gpu(const Value& value) {
  value.with_members({"pci", "nvml_index", "model", "uuid", "mig", "visible", "hidden_reason"});
  GpuFact fact;
  fact.pci = value.member("pci").pci();
  const Value index = value.member("nvml_index");
  if (!index.is_null()) fact.nvml_index = index.integer(0, kLargestGpuIndex);
  fact.model = value.member("model").text();
  fact.uuid = value.member("uuid").text();
  fact.mig = value.member("mig").each(read_mig);
  fact.visible = value.member("visible").boolean();
  fact.hidden_reason = value.member("hidden_reason").text();
  return fact;
}

GpuLinkFact read_link(const Value& value) {
  value.with_members({"a", "b", "mb_per_s"});
  return {.a = value.member("a").pci(), .b = value.member("b").pci(), .mb_per_s = value.member("mb_per_s").rate()};
}

json parse(std::string_view text) {
  if (text.size() > kLargestBytes) {
    reject(fmt::format("it has {} bytes; {} are allowed", text.size(), kLargestBytes));
  }
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    reject(fmt::format("it is not JSON: {}", error.what()));
  }
}

}  // namespace

std::string to_json(const LiveFacts& facts) {
  const json value = {{"version", kVersion},          {"interfaces", to_array(facts.interfaces)},
                      {"rdma", to_array(facts.rdma)}, {"virtual_functions", to_array(facts.virtual_functions)},
                      {"gpus", to_array(facts.gpus)}, {"gpu_links", to_array(facts.gpu_links)}};
  // ASCII only: it becomes an XML attribute. Invalid UTF-8 becomes U+FFFD instead of an error.
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

LiveFacts facts_from_json(std::string_view text) {
  const json parsed = parse(text);
  if (!parsed.is_object() || !parsed.contains("version")) reject("it is not an object with a 'version'");
  const Value value{parsed, "the record"};
  if (parsed["version"] != kVersion) reject(fmt::format("its version is not {}", kVersion));
  value.with_members({"version", "interfaces", "rdma", "virtual_functions", "gpus", "gpu_links"});
  return {.interfaces = value.member("interfaces").each(read_interface),
          .rdma = value.member("rdma").each(read_rdma),
          .virtual_functions = value.member("virtual_functions").each([](const Value& item) { return item.pci(); }),
          .gpus = value.member("gpus").each(read_gpu),
          .gpu_links = value.member("gpu_links").each(read_link)};
}

}  // namespace ddp::topology
