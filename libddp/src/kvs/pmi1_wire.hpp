// The PMI-1 wire protocol, which Hydra (MPICH, Intel MPI) and Flux speak: a request is a line, and so is its answer,
// "cmd=NAME key=value ...\n". Source: the "simple" PMI-1 of MPICH, Hydra 4.0 and flux-core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvs/pmi_channel.hpp"

namespace ddp::kvs {

/// The longest line that is read, and the longest value that a server may promise to keep.
inline constexpr std::size_t kPmi1MostLineBytes = std::size_t{64} << 10U;

/// A line, ready to send. Throws Error(invalid_argument) for fields that the protocol cannot carry.
std::string encode_pmi1(const PmiMessage& message);

/// A line without its end. A word without '=' belongs to the value before it. Throws Error(protocol).
PmiMessage parse_pmi1(std::string_view line);

/// What a server keeps, from its answer to get_maxes.
struct Pmi1Maxes {
  std::size_t key_bytes = 0;
  std::size_t value_bytes = 0;  ///< with the terminating zero
};

/// Throws Error: protocol where a limit is missing or no number; unavailable where keys or values of ours do not fit.
Pmi1Maxes read_pmi1_maxes(const PmiMessage& answer);

/// How long a text may be, so that a whole line with it fits where @p maxes are those of lines as well (MPICH's
/// PMIU_MAXLINE).
std::size_t pmi1_text_bytes(const Pmi1Maxes& maxes, std::size_t kvs_name_bytes);

/// "HOST:PORT" of PMI_PORT.
struct Pmi1Address {
  std::string host;
  std::uint16_t port = 0;
};

/// Throws Error(invalid_argument).
Pmi1Address parse_pmi_port(std::string_view text);

}  // namespace ddp::kvs
