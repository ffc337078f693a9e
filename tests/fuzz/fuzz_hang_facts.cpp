// What other processes of the user may hold in memory as a flight recorder. Whatever the bytes: they are refused, or
// give facts that are judged and reported.
#include <cstring>
#include <memory>
#include <new>

#include "diagnostics/hang/hang_judge.hpp"
#include "diagnostics/hang/hang_report.hpp"
#include "fuzz/fuzz.hpp"

namespace {

using namespace ddp::diagnostics;

void judge(HostFacts facts) {
  const JobObservation job = join_hosts({std::move(facts)}, true);
  const HangVerdict verdict = judge_hang(job, 1);
  require(!hang_text(job, verdict).empty() && !hang_json(job, verdict).empty());
}

struct Free {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::unique_ptr<std::byte, Free> memory{static_cast<std::byte*>(::operator new[](size, std::align_val_t{64}))};
  if (size > 0) std::memcpy(memory.get(), data, size);
  if (auto view = ddp::flight::read_flight_memory({memory.get(), size})) {
    RankFacts rank;
    rank.rank = 0;
    rank.world_size = 2;
    rank.state = 'S';
    rank.flight = std::move(view);
    judge({.host = "n1", .ranks = {rank}});
  }
  return 0;
}
