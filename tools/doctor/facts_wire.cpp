// The facts as bytes: each struct names its fields once, for writing and for reading.
#include <bit>
#include <cmath>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "command/rank_message.hpp"
#include "doctor/facts.hpp"
#include "topology/network/candidate_bytes.hpp"

namespace ddp::tools::doctor {
namespace {

constexpr std::uint8_t kVersion = 3;
constexpr MessageKind kMessage{.name = "rank's facts", .program = "ddp-info"};

template <class Archive>
void fields(Archive& archive, InterfaceAddress& value) {
  archive(value.address)(value.prefix_length)(value.ipv6);
}
template <class Archive>
void fields(Archive& archive, InterfaceFacts& value) {
  archive(value.name)(value.kind)(value.running)(value.mtu)(value.rate_mbps)(value.arp_ignore)(value.arp_announce)(
      value.addresses);
}
template <class Archive>
void fields(Archive& archive, GidFacts& value) {
  archive(value.index)(value.type)(value.gid);
}
template <class Archive>
void fields(Archive& archive, RdmaPortFacts& value) {
  archive(value.device)(value.port)(value.state)(value.link_layer)(value.gids_known)(value.gids)(value.gids_cut)(
      value.subnet)(value.pkeys)(value.rate_mbps)(value.pci)(value.board)(value.firmware);
}
template <class Archive>
void fields(Archive& archive, topology::GpuHealth& value) {
  archive(value.name)(value.uncorrected_errors)(value.remap_pending)(value.remap_failed)(value.slowed_by)(
      value.persistent)(value.fabric)(value.fabric_error)(value.cluster)(value.clique);
}
template <class Archive>
void fields(Archive& archive, GpuFacts& value) {
  archive(value.name)(value.numa_node)(value.cpus)(value.paths);
}
template <class Archive>
void fields(Archive& archive, PluginFacts& value) {
  archive(value.variable)(value.path)(value.digest)(value.network)(value.by_default);
}
template <class Archive>
void fields(Archive& archive, ProbeListener& value) {
  archive(value.interface)(value.address)(value.mtu)(value.rate_mbps)(value.tcp_port)(value.udp_port);
}
template <class Archive>
void fields(Archive& archive, XidFacts& value) {
  archive(value.gpu)(value.number)(value.times)(value.age_s);
}
template <class Archive>
void fields(Archive& archive, NameFacts& value) {
  archive(value.addresses)(value.unanswered);
}
template <class Archive>
void fields(Archive& archive, NodeFacts& value) {
  archive(value.boot_id)(value.kernel)(value.own_name)(value.master)(value.master_port_taken)(value.shm_bytes)(
      value.shm_free_bytes)(value.interfaces)(value.rdma)(value.candidates)(value.candidate_facts)(
      value.candidates_failure)(value.port_low)(value.port_high)(value.iommu)(value.acs_ports)(value.peer_memory)(
      value.dma_buf)(value.nvidia_gpus)(value.nvidia_driver)(value.nvswitches)(value.fabric_manager)(
      value.fabric_manager_version)(value.imex_nodes)(value.gpus)(value.xids)(value.gateways)(value.libfabric_device)(
      value.numa)(value.removes_ipc)(value.foreign_ras_port)(value.slurm_version)(value.listeners)(value.token);
}
template <class Archive>
void fields(Archive& archive, RankFacts& value) {
  archive(value.failure)(value.rank)(value.local_rank)(value.node)(value.host)(value.version)(value.environment)(
      value.pmix_version)(value.memlock_bytes)(value.open_files)(value.stack_unlimited)(value.cpus)(value.memory_nodes)(
      value.cores)(value.cpu_quota)(value.pids_limit)(value.namespaces)(value.shm_device)(value.gpus)(value.gpu_models)(
      value.gpus_of_node)(value.gpus_allowed)(value.nvidia_caps)(value.imex_channel)(value.verbs_problem)(
      value.plugins)(value.nccl_copies)(value.libfabric)(value.missing_files)(value.gpu_health)(value.of_node);
}
template <class Archive>
void fields(Archive& archive, ProbeResult& value) {
  archive(value.to_node)(value.interface)(value.address)(value.end)(value.packet)(value.packet_bytes)(value.rate_mbps)(
      value.path_mbps);
}
template <class Archive>
void fields(Archive& archive, ProbeReport& value) {
  archive(value.clock_ms)(value.results);
}

/// The largest enumerator of the enumerations above.
template <class Enum>
constexpr std::uint8_t largest_of() {
  if constexpr (std::is_same_v<Enum, InterfaceKind>) return static_cast<std::uint8_t>(InterfaceKind::other);
  if constexpr (std::is_same_v<Enum, ProbeEnd>) return static_cast<std::uint8_t>(ProbeEnd::unreachable);
  if constexpr (std::is_same_v<Enum, Path>) return static_cast<std::uint8_t>(Path::unknown);
  if constexpr (std::is_same_v<Enum, FabricManager>) return static_cast<std::uint8_t>(FabricManager::absent);
  if constexpr (std::is_same_v<Enum, topology::FabricState>) {
    return static_cast<std::uint8_t>(topology::FabricState::completed);
  }
  if constexpr (std::is_same_v<Enum, PacketEnd>) return static_cast<std::uint8_t>(PacketEnd::lost);
}

class FactWriter {
 public:
  template <class Value>
  FactWriter& operator()(Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
      writer.integer(static_cast<std::uint8_t>(value));
    } else if constexpr (std::is_enum_v<Value>) {
      writer.integer(static_cast<std::uint8_t>(value));
    } else if constexpr (std::is_integral_v<Value>) {
      writer.integer(value);
    } else {
      fields(*this, value);
    }
    return *this;
  }
  FactWriter& operator()(double& value) { return integer(std::bit_cast<std::uint64_t>(value)); }
  FactWriter& operator()(std::string& value) {
    writer.text(value);
    return *this;
  }
  FactWriter& operator()(Bytes& value) {
    writer.blob(value);
    return *this;
  }
  FactWriter& operator()(CpuSet& value) {
    writer.text(value.to_string());
    return *this;
  }
  FactWriter& operator()(Variables& values) {
    integer(static_cast<std::uint32_t>(values.size()));
    for (const auto& [name, value] : values) writer.text(name).text(value);
    return *this;
  }
  FactWriter& operator()(topology::CandidateAddress& value) {
    topology::write_candidate(writer, value);
    return *this;
  }
  template <class Element>
  FactWriter& operator()(std::vector<Element>& values) {
    integer(static_cast<std::uint32_t>(values.size()));
    for (Element& value : values) (*this)(value);
    return *this;
  }
  template <class Element>
  FactWriter& operator()(std::optional<Element>& value) {
    integer(static_cast<std::uint8_t>(value.has_value()));
    if (value) (*this)(*value);
    return *this;
  }

  base::ByteWriter writer;

 private:
  template <class Int>
  FactWriter& integer(Int value) {
    writer.integer(value);
    return *this;
  }
};

class FactReader {
 public:
  explicit FactReader(std::span<const std::byte> bytes) : reader(bytes, kMessage.name) {}

  template <class Value>
  FactReader& operator()(Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
      value = small(1) == 1;
    } else if constexpr (std::is_enum_v<Value>) {
      value = static_cast<Value>(small(largest_of<Value>()));
    } else if constexpr (std::is_integral_v<Value>) {
      value = reader.integer<Value>();
    } else {
      fields(*this, value);
    }
    return *this;
  }
  FactReader& operator()(double& value) {
    value = std::bit_cast<double>(reader.integer<std::uint64_t>());
    if (!std::isfinite(value)) reject_message(kMessage, "a number is not finite");
    return *this;
  }
  FactReader& operator()(std::string& value) {
    value = reader.text();
    return *this;
  }
  FactReader& operator()(Bytes& value) {
    const auto bytes = reader.blob();
    value.assign(bytes.begin(), bytes.end());
    return *this;
  }
  FactReader& operator()(CpuSet& value) {
    value = read_cpus(reader, kMessage);
    return *this;
  }
  FactReader& operator()(Variables& values) {
    for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
      std::string name = reader.text();
      values[std::move(name)] = reader.text();
    }
    return *this;
  }
  FactReader& operator()(topology::CandidateAddress& value) {
    value = topology::read_candidate(reader);
    return *this;
  }
  /// An untrusted count: each element takes bytes, so a wrong one ends in an error of the reader.
  template <class Element>
  FactReader& operator()(std::vector<Element>& values) {
    for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) (*this)(values.emplace_back());
    return *this;
  }
  template <class Element>
  FactReader& operator()(std::optional<Element>& value) {
    if (small(1) == 1) (*this)(value.emplace());
    return *this;
  }

  base::ByteReader reader;

 private:
  std::uint8_t small(std::uint8_t largest) {
    const auto value = reader.integer<std::uint8_t>();
    if (value > largest) reject_message(kMessage, fmt::format("it has {} where at most {} may be", value, largest));
    return value;
  }
};

template <class Facts>
Bytes encode_any(const Facts& facts) {
  FactWriter writer;
  writer.writer.integer(kVersion);
  Facts copy = facts;  // the fields are named once, for reading, too
  writer(copy);
  Bytes bytes = std::move(writer.writer).bytes();
  if (bytes.size() > kLargestFactsBytes) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "telling rank 0 what this rank has found",
                 .cause = fmt::format("the facts have {} bytes, more than {}", bytes.size(), kLargestFactsBytes),
                 .hint = "is an environment variable extremely long?"}};
  }
  return bytes;
}

template <class Facts>
Facts decode_any(std::span<const std::byte> bytes) {
  if (bytes.size() > kLargestFactsBytes) reject_message(kMessage, fmt::format("it has {} bytes", bytes.size()));
  FactReader reader{bytes};
  expect_version(reader.reader, kVersion, kMessage);
  Facts facts;
  reader(facts);
  reader.reader.expect_end();
  return facts;
}

}  // namespace

Bytes encode(const RankFacts& facts) { return encode_any(facts); }
Bytes encode(const ProbeReport& report) { return encode_any(report); }
RankFacts decode_rank_facts(std::span<const std::byte> bytes) { return decode_any<RankFacts>(bytes); }
ProbeReport decode_probe_report(std::span<const std::byte> bytes) { return decode_any<ProbeReport>(bytes); }

}  // namespace ddp::tools::doctor
