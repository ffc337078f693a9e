// What a rank of PyTorch answers as its flight recorder, and what lies in its files: whatever the bytes, they are
// refused or give groups and operations with printable names.
#include "diagnostics/hang/torch_recorder.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddp::flight::FlightView view;
  view.rank = 0;
  view.world_size = 2;
  try {
    ddp::diagnostics::add_torch_trace({reinterpret_cast<const char*>(data), size}, 1'795'435'300'000'000'000, view);
  } catch (const ddp::Error& error) {
    if (error.code() != ddp::ErrorCode::protocol) std::abort();
  }
  for (const auto& call : view.unfinished) {
    for (const std::string_view name : {std::string_view{call.group}, std::string_view{call.operation}}) {
      if (std::any_of(name.begin(), name.end(), [](unsigned char letter) { return letter < ' ' || letter >= 0x7f; }))
        std::abort();
    }
  }
  return 0;
}
