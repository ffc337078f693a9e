// The start of a shard's file, written and parsed.
#include <string>

#include <fmt/format.h>

#include "base/byte_stream.hpp"
#include "training/shard_file.hpp"

namespace ddp::training {
namespace {

constexpr std::string_view kShardMagic = "DDPSHARD";
constexpr std::uint32_t kShardVersion = 1;
static_assert(kShardMagic.size() + sizeof(kShardVersion) + sizeof(std::uint32_t) == kShardStartBytes);

std::span<const std::byte> as_bytes_of(std::string_view text) {
  return std::as_bytes(std::span{text.data(), text.size()});
}

}  // namespace

std::string format_index(const ShardIndex& index) {
  base::ByteWriter body;
  body.text(index.origin.id).integer(index.origin.step).integer(index.origin.rank).integer(index.origin.files);
  body.integer(static_cast<std::uint64_t>(index.tensors.size()));
  for (const ShardEntry& tensor : index.tensors) body.text(tensor.name).text(tensor.description).integer(tensor.bytes);
  body.integer(index.extra_bytes);
  base::ByteWriter all;
  all.raw(as_bytes_of(kShardMagic)).integer(kShardVersion);
  all.integer(static_cast<std::uint32_t>(body.bytes().size())).raw(body.bytes());
  return base::to_text(all.bytes());
}

std::uint32_t parse_shard_start(std::string_view start, const std::string& path) {
  if (start.size() != kShardStartBytes || !start.starts_with(kShardMagic)) {
    throw_damaged(path, "it is not a file of a checkpoint of libddp");
  }
  base::ByteReader reader(as_bytes_of(start.substr(kShardMagic.size())), "start of a checkpoint's file");
  if (const auto version = reader.integer<std::uint32_t>(); version != kShardVersion) {
    throw_other_version(path, version, kShardVersion);
  }
  return reader.integer<std::uint32_t>();
}

ShardIndex parse_index(std::string_view bytes, const std::string& path) {
  ShardIndex index;
  try {
    base::ByteReader reader(as_bytes_of(bytes), "index of a checkpoint's file");
    index.origin.id = reader.text();
    index.origin.step = reader.integer<std::int64_t>();
    index.origin.rank = reader.integer<std::uint32_t>();
    index.origin.files = reader.integer<std::uint32_t>();
    const auto count = reader.integer<std::uint64_t>();
    for (std::uint64_t i = 0; i < count; ++i) {  // each takes bytes of those that are there
      ShardEntry& tensor = index.tensors.emplace_back();
      tensor.name = reader.text();
      tensor.description = reader.text();
      tensor.bytes = reader.integer<std::uint64_t>();
    }
    index.extra_bytes = reader.integer<std::uint64_t>();
    reader.expect_end();
  } catch (const Error& error) {
    throw_damaged(path, fmt::format("its index is damaged: {}", error.cause()));
  }
  return index;
}

}  // namespace ddp::training
