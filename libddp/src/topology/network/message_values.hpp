// How facts of the topology stand in messages (base/message_fields.hpp).
#pragma once

#include <ddp/cpu_set.hpp>
#include <ddp/devices.hpp>

#include "base/byte_stream.hpp"
#include "base/message_fields.hpp"
#include "topology/network/candidate_bytes.hpp"

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

inline void write_value(base::ByteWriter& writer, const CandidateAddress& candidate) {
  write_candidate(writer, candidate);
}
inline void read_value(base::ByteReader& reader, CandidateAddress& candidate) { candidate = read_candidate(reader); }

}  // namespace ddp::topology
