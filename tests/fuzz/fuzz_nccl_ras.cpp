// What answers at the port of NCCL's RAS: whatever the bytes, they are refused or give troubles of bounded size.
#include "diagnostics/hang/nccl_ras.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  try {
    for (const auto& trouble : ddp::diagnostics::ras_troubles(text, text, {100})) {
      if (trouble.text.empty() || trouble.text.find('\n') != std::string::npos) std::abort();
    }
  } catch (const ddp::Error& error) {
    if (error.code() != ddp::ErrorCode::protocol) std::abort();
  }
  return 0;
}
