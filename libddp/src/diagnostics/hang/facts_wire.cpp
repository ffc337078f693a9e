// Facts of a host on their way to the process that judges the job.
#include "base/message.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {

Bytes encode(const HostFacts& facts) { return base::encode(facts); }

HostFacts decode_host_facts(std::span<const std::byte> bytes) { return base::decode<HostFacts>(bytes); }

}  // namespace ddp::diagnostics
