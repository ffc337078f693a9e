#include "task_side/network_notes.hpp"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "topology/network/candidate_bytes.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr std::uint8_t kNetworkVersion = 1;

[[noreturn]] void refuse(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading what another node says of the network",
               .cause = std::move(cause),
               .hint = "install one version of the plugin on all nodes"}};
}

void check_network_version(base::ByteReader& reader) {
  const auto version = reader.integer<std::uint8_t>();
  if (version != kNetworkVersion) refuse(fmt::format("its version is {}, this one's {}", version, kNetworkVersion));
}

}  // namespace

std::string note_key(const std::string& node) { return fmt::format("ddp-step/network/node/{}", node); }

Bytes encode(const NodeNote& note) {
  base::ByteWriter writer;
  writer.integer(kNetworkVersion).integer(static_cast<std::uint8_t>(note.size()));
  for (const topology::CandidateAddress& candidate : note) topology::write_candidate(writer, candidate);
  return std::move(writer).bytes();
}

NodeNote decode_note(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "candidates of a node");
  check_network_version(reader);
  const auto count = reader.integer<std::uint8_t>();
  if (count > topology::kMostCandidates) refuse(fmt::format("it has {} addresses", count));
  NodeNote note;
  for (unsigned i = 0; i < count; ++i) note.push_back(topology::read_candidate(reader));
  reader.expect_end();
  return note;
}

Bytes encode(const NetworkDecision& decision) {
  base::ByteWriter writer;
  const topology::Subnet subnet = decision.subnet.value_or(topology::Subnet{});
  writer.integer(kNetworkVersion)
      .integer(static_cast<std::uint8_t>(decision.subnet.has_value()))
      .integer(static_cast<std::uint8_t>(subnet.ipv6))
      .integer(static_cast<std::uint8_t>(subnet.prefix_length))
      .raw(std::as_bytes(std::span{subnet.network}))
      .text(decision.reason)
      .text(decision.by);
  return std::move(writer).bytes();
}

NetworkDecision decode_decision(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "decision about the network");
  check_network_version(reader);
  const auto found = reader.integer<std::uint8_t>();
  const auto ipv6 = reader.integer<std::uint8_t>();
  const auto prefix_length = reader.integer<std::uint8_t>();
  if (found > 1 || ipv6 > 1 || prefix_length > (ipv6 == 1 ? 128 : 32))
    refuse(fmt::format("a subnet is {}, {}, of {} bits", found, ipv6, prefix_length));
  topology::Subnet subnet{.ipv6 = ipv6 == 1, .prefix_length = prefix_length};
  const auto network = reader.raw(subnet.network.size());
  std::transform(network.begin(), network.end(), subnet.network.begin(),
                 [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  NetworkDecision decision;
  decision.reason = reader.text();
  decision.by = reader.text();
  if (found == 1) decision.subnet = subnet;
  reader.expect_end();
  return decision;
}

}  // namespace ddp::srun_plugin
