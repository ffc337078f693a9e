// How facts of the topology stand in messages (base/message_fields.hpp).
#pragma once

#include <ddp/cpu_set.hpp>
#include <ddp/devices.hpp>

#include "base/byte_stream.hpp"
#include "base/message_fields.hpp"
#include "topology/network/interface_candidates.hpp"

namespace ddp {

/// As the text of a list: "0-3,8". Throws Error(protocol) for other text.
inline void write_value(base::ByteWriter& writer, const CpuSet& cpus) { writer.text(cpus.to_string()); }
inline void read_value(base::ByteReader& reader, CpuSet& cpus) {
  try {
    cpus = CpuSet::parse(reader.text());
  } catch (const Error& error) {
    reader.refuse(error.cause());
  }
}

constexpr auto description(const PciAddress*) {
  using T = PciAddress;
  return base::describe({"PCI address"}, base::fields<&T::domain, &T::bus, &T::device, &T::function>());
}

}  // namespace ddp

namespace ddp::topology {

/// At most 22 bytes. Throws Error(invalid_argument) unless the address is numeric.
void write_value(base::ByteWriter& writer, const CandidateAddress& candidate);
/// Throws Error(protocol) for bytes that write_value() did not write.
void read_value(base::ByteReader& reader, CandidateAddress& candidate);

}  // namespace ddp::topology
