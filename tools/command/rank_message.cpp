#include "command/rank_message.hpp"

#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::tools {

void reject_message(const MessageKind& kind, std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("reading a {}", kind.name),
               .cause = std::move(cause),
               .hint = fmt::format("do all ranks run the same version of {}?", kind.program)}};
}

void expect_version(base::ByteReader& reader, std::uint8_t version, const MessageKind& kind) {
  const auto found = reader.integer<std::uint8_t>();
  if (found != version) reject_message(kind, fmt::format("version {} instead of {}", found, version));
}

CpuSet read_cpus(base::ByteReader& reader, const MessageKind& kind) {
  const std::string text = reader.text();
  try {
    return CpuSet::parse(text);
  } catch (const Error& error) {
    reject_message(kind, error.cause());
  }
}

void write_numbers(base::ByteWriter& writer, const std::vector<int>& numbers) {
  writer.integer(static_cast<std::uint32_t>(numbers.size()));
  for (const int number : numbers) writer.integer(number);
}

std::vector<int> read_numbers(base::ByteReader& reader) {
  std::vector<int> numbers;
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) numbers.push_back(reader.integer<int>());
  return numbers;
}

}  // namespace ddp::tools
