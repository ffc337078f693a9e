#include "world/endpoint_record.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/byte_stream.hpp"
#include "topology/network/candidate_bytes.hpp"

namespace ddp::world {
namespace {

constexpr std::uint8_t kVersion = 3;

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading an endpoint record",
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

Bytes encode_with(const EndpointRecord& record, std::size_t addresses) {
  base::ByteWriter writer;
  writer.integer(kVersion)
      .text(record.hostname)
      .integer(record.node_rank)
      .integer(record.channel_port)
      .raw(record.channel_token)
      .integer(static_cast<std::int32_t>(record.process.pid))
      .integer(record.process.space)
      .integer(static_cast<std::uint8_t>(addresses));
  for (std::size_t i = 0; i < addresses; ++i) topology::write_candidate(writer, record.addresses[i]);
  return std::move(writer).bytes();
}

}  // namespace

Bytes encode(const EndpointRecord& record) {
  std::size_t addresses = std::min(record.addresses.size(), topology::kMostCandidates);
  Bytes bytes = encode_with(record, addresses);
  while (bytes.size() > kMaxEndpointRecordBytes && addresses > 1) bytes = encode_with(record, --addresses);
  if (bytes.size() > kMaxEndpointRecordBytes) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "describing this rank to the others",
                 .cause = fmt::format("the description needs {} bytes, {} are allowed; the host name is '{}'",
                                      bytes.size(), kMaxEndpointRecordBytes, record.hostname),
                 .hint = "shorten the host name"}};
  }
  return bytes;
}

EndpointRecord decode_endpoint_record(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "endpoint record");
  const auto version = reader.integer<std::uint8_t>();
  if (version != kVersion) {
    reject(fmt::format("it has version {}, this library knows {}", version, kVersion),
           "all ranks must run the same version of libddp");
  }
  EndpointRecord record;
  record.hostname = reader.text();
  record.node_rank = reader.integer<int>();
  record.channel_port = reader.integer<std::uint16_t>();
  const auto token = reader.raw(record.channel_token.size());
  std::copy(token.begin(), token.end(), record.channel_token.begin());
  record.process.pid = reader.integer<std::int32_t>();
  record.process.space = reader.integer<std::uint64_t>();
  const auto addresses = reader.integer<std::uint8_t>();
  if (addresses == 0 || addresses > topology::kMostCandidates) {
    reject(fmt::format("it has {} addresses, not 1 to {}", addresses, topology::kMostCandidates), {});
  }
  for (unsigned i = 0; i < addresses; ++i) record.addresses.push_back(topology::read_candidate(reader));
  reader.expect_end();
  return record;
}

}  // namespace ddp::world
