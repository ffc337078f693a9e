// What anyone may send to the metrics endpoint, in pieces: the verdict of the whole must not depend on where it was
// cut.
#include "diagnostics/metrics/metrics_endpoint.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ddp::diagnostics::HttpVerdict;
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const HttpVerdict whole = ddp::diagnostics::judge_request(text);
  for (std::size_t part = 0; part < size; ++part) {
    // Only a request whose head has ended is answered with metrics, and more bytes do not change that.
    const HttpVerdict verdict = ddp::diagnostics::judge_request(text.substr(0, part));
    if (verdict == HttpVerdict::metrics && whole != HttpVerdict::metrics) std::abort();
  }
  if (whole != HttpVerdict::incomplete && ddp::diagnostics::status_line(whole).size() < 4) std::abort();
  return 0;
}
