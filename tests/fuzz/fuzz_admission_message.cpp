// What may arrive as an admission request at the TCPStore server. The input is a byte that says how the rest is cut
// into pieces, and what the client sends. Only the 34 valid bytes admit, in whatever pieces; nothing behind them is
// read, and other bytes are refused as soon as they cannot become valid.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "store_server/admission_message.hpp"

namespace {

using namespace ddp::store_server;
using Verdict = AdmissionReader::Verdict;

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const AdmissionMessage right =
      admission_message("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
  static const std::string right_bytes{right.begin(), right.end()};
  const std::size_t piece_size = 1 + std::size_t{data[0]} % kAdmissionMessageBytes;
  const std::string_view input{reinterpret_cast<const char*>(data) + 1, size - 1};
  AdmissionReader reader;
  std::size_t taken = 0;
  Verdict verdict = Verdict::incomplete;
  while (verdict == Verdict::incomplete && taken < input.size()) {
    require(reader.missing_bytes() == kAdmissionMessageBytes - taken);
    // a buffer of its own, so that a read past its end is found
    const std::string piece{input.substr(taken, std::min(piece_size, reader.missing_bytes()))};
    verdict = reader.feed(piece, right);
    taken += piece.size();
  }
  require(taken <= kAdmissionMessageBytes);
  const std::string_view seen = input.substr(0, taken);
  require((verdict == Verdict::valid) == (seen == right_bytes));
  require(
      (verdict == Verdict::incomplete) ==
      (taken < kAdmissionMessageBytes && seen.substr(0, 2) == right_bytes.substr(0, std::min<std::size_t>(taken, 2))));
  return 0;
}
