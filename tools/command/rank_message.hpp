// Common parts of the ranks' messages to rank 0: version, masks, lists of numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/cpu_set.hpp>

#include "base/byte_stream.hpp"

namespace ddp::tools {

/// A message's name in errors.
struct MessageKind {
  std::string_view name;     ///< "rank's report"
  std::string_view program;  ///< all ranks must run the same version of it
};

/// Throws Error(protocol) with @p cause.
[[noreturn]] void reject_message(const MessageKind& kind, std::string cause);

/// Throws Error(protocol) unless the next byte is @p version.
void expect_version(base::ByteReader& reader, std::uint8_t version, const MessageKind& kind);

/// Throws Error(protocol) unless the text is a list of processors.
CpuSet read_cpus(base::ByteReader& reader, const MessageKind& kind);

void write_numbers(base::ByteWriter& writer, const std::vector<int>& numbers);
/// An untrusted count: each element takes bytes, so a wrong one ends in a reader error.
std::vector<int> read_numbers(base::ByteReader& reader);

}  // namespace ddp::tools
