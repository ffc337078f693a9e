// Candidate addresses as bytes, for the messages in which ranks and nodes tell each other what they have.
#pragma once

#include "base/byte_stream.hpp"
#include "topology/network/interface_candidates.hpp"

namespace ddp::topology {

/// At most 22 bytes. Throws Error(invalid_argument) unless the address is numeric.
void write_candidate(base::ByteWriter& writer, const CandidateAddress& candidate);

/// Throws Error(protocol) for bytes that write_candidate() did not write.
CandidateAddress read_candidate(base::ByteReader& reader);

}  // namespace ddp::topology
