// What the messages have in common in which ranks tell rank 0 about themselves: a version, masks and lists of numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/cpu_set.hpp>

#include "base/byte_stream.hpp"

namespace ddp::tools {

/// How errors speak of a message.
struct MessageKind {
  std::string_view name;     ///< "rank's report"
  std::string_view program;  ///< all ranks must run the same version of it
};

/// Throws Error(protocol) that says @p cause.
[[noreturn]] void reject_message(const MessageKind& kind, std::string cause);

/// Throws Error(protocol) unless the next byte is @p version.
void expect_version(base::ByteReader& reader, std::uint8_t version, const MessageKind& kind);

/// Throws Error(protocol) for a text that is no list of processors.
CpuSet read_cpus(base::ByteReader& reader, const MessageKind& kind);

void write_numbers(base::ByteWriter& writer, const std::vector<int>& numbers);
/// The count is not trusted: each element takes bytes, so a wrong one ends in an error of the reader.
std::vector<int> read_numbers(base::ByteReader& reader);

}  // namespace ddp::tools
