// Dumps of flight recorders, which may come from anywhere. Whatever the bytes: either they are refused with one line,
// or analysed, together with a second dump that fits, into a report of text and JSON.
#include "flight/analysis.hpp"
#include "flight/flight_command.hpp"
#include "flight/rank_dump.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::tools::flight;
  const std::string text{reinterpret_cast<const char*>(data), size};
  try {
    const RankDump dump = parse_rank_dump(text, "fuzzed.json");
    RankDump other = dump;
    other.rank = dump.groups.empty() ? dump.rank + 1 : dump.groups.front().ranks.back();
    if (!other.calls.empty()) other.calls.pop_back();
    const DumpFolder folder = choose_job({dump, other});
    const Analysis analysis = analyse(folder.dumps);
    if (text_report(folder, analysis).empty() || json_report(folder, analysis).empty()) __builtin_trap();
  } catch (const ddp::Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) __builtin_trap();
  }
  return 0;
}
