// What another rank may have sent as its result of the self-test. Whatever the bytes, decoding throws ddp::Error or
// gives a result that comes back when it is sent on.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <ddp/error.hpp>

#include "selftest/verdict.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::selftest;
  try {
    RankResult result = decode_rank_result(std::as_bytes(std::span{data, size}));
    // encode() cuts texts.
    for (Finding& finding : result.findings) finding.what = finding.what.substr(0, kLongestText);
    require(decode_rank_result(encode(result)) == result);
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
  }
  return 0;
}
