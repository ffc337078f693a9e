// What a resuming job reads of its checkpoints. Whatever the bytes, parsing throws ddp::Error or gives what is written
// with the same bytes. The first byte chooses: m, a manifest without its last line; w, a whole one; i, the index of a
// rank's file; s, a sampler's state; o, a folder's owner.
#include <ddp/elastic_sampler.hpp>

#include "fuzz/fuzz.hpp"
#include "training/checkpoint_manifest.hpp"
#include "training/saver.hpp"
#include "training/shard_file.hpp"

namespace {

using namespace ddp::training;

void check_manifest(const std::string& text) {
  if (format_manifest(parse_manifest(text, "folder/manifest")) != text) std::abort();
}

void check_index(std::string_view bytes) {
  const std::uint32_t size = parse_shard_start(bytes.substr(0, kShardStartBytes), "folder/rank-0");
  bytes.remove_prefix(kShardStartBytes);
  const std::string whole = format_index(parse_index(bytes, "folder/rank-0"));
  if (whole.substr(kShardStartBytes) != bytes) std::abort();
  if (size == bytes.size() && parse_shard_start(whole.substr(0, kShardStartBytes), "") != size) std::abort();
}

void check_state(std::string_view text) {
  const ddp::SamplerState state = ddp::parse_sampler_state(text);
  if (ddp::parse_sampler_state(ddp::to_string(state)) != state) std::abort();
}

void check_owner(std::string_view text) {
  if (format_saver(parse_saver(text, "folder/owner")) != text) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
  try {
    switch (data[0]) {
      case 'm': check_manifest(std::string(text) + "checksum " + FileChecksum().add(text).digits() + "\n"); break;
      case 'w': check_manifest(std::string(text)); break;
      case 'i': check_index(text); break;
      case 's': check_state(text); break;
      case 'o': check_owner(text); break;
      default: break;
    }
  } catch (const ddp::Error& error) {
    if (error.code() != ddp::ErrorCode::protocol && error.code() != ddp::ErrorCode::invalid_argument) std::abort();
  }
  return 0;
}
