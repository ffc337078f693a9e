// What another rank may have published as its record. Whatever the bytes, decoding throws ddp::Error or gives a record
// that is encoded to the same bytes again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <ddp/error.hpp>

#include "world/endpoint_record.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span{data, size});
  try {
    const ddp::world::EndpointRecord record = ddp::world::decode_endpoint_record(bytes);
    if (size > ddp::world::kMaxEndpointRecordBytes) return 0;  // it could be read, but would not have been published
    const ddp::Bytes again = ddp::world::encode(record);
    require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
  }
  return 0;
}
