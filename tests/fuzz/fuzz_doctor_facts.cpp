// What another rank may have sent to the doctor. Whatever the bytes, decoding throws ddp::Error or gives facts that
// come back when they are sent on, and that no rule stumbles over.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <ddp/error.hpp>

#include "doctor/rule.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::tools::doctor;
  const auto bytes = std::as_bytes(std::span{data, size});
  try {
    const ProbeReport report = decode_probe_report(bytes);
    require(decode_probe_report(encode(report)) == report);
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
  }
  try {
    RankFacts facts = decode_rank_facts(bytes);
    require(decode_rank_facts(encode(facts)) == facts);
    JobFacts job;
    facts.rank = facts.node = 0;
    job.nodes.push_back({.host = facts.host, .ranks = {0}, .facts = facts.of_node.value_or(NodeFacts{})});
    job.ranks.push_back(facts);
    examine(job, [](const Rule&) { return true; });
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
  }
  return 0;
}
