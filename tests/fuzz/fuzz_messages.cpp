// What other ranks, nodes and processes may have sent: every described message (base/message_fields.hpp). Whatever the
// bytes, decoding throws ddp::Error or gives a message that comes back when it is sent on, and that its reader stands.
// The first byte chooses the message, the second whether the rest is it, or changes to a sample of it.
#include <tuple>

#include "collectives/host/rank_address.hpp"
#include "collectives/nccl/rank_report.hpp"
#include "collectives/operation_log.hpp"
#include "collectives/shm/endpoint.hpp"
#include "collectives/tcp/frame.hpp"
#include "collectives/tcp/handshake.hpp"
#include "control/message_fields.hpp"
#include "diagnostics/environment/environment_fold.hpp"
#include "diagnostics/environment/environment_message.hpp"
#include "diagnostics/hang/hang_judge.hpp"
#include "diagnostics/hang/hang_report.hpp"
#include "doctor/facts_fields.hpp"
#include "doctor/rule.hpp"
#include "fuzz/fuzz.hpp"
#include "launch/agent_settings.hpp"
#include "named/messages.hpp"
#include "selftest/verdict.hpp"
#include "support/message_filler.hpp"
#include "support/topology_samples.hpp"
#include "topo/job_gather.hpp"
#include "topology/placement/rank_resources.hpp"
#include "world/endpoint_record.hpp"

namespace ddp::collectives::nccl {

inline void fill_sample(ncclUniqueId& id) { id.internal[0] = 'x'; }

}  // namespace ddp::collectives::nccl

namespace {

using namespace ddp;

using Messages =
    std::tuple<launcher::control::Message, launcher::AgentSettings, world::EndpointRecord, topology::RankResources,
               collectives::GroupMessage, collectives::ProposalAnswer, collectives::StatusAnswer,
               collectives::host::RankAddress, collectives::shm::EndpointAddress, collectives::shm::JoinMessage,
               collectives::tcp::FailureNotice, collectives::tcp::RankRecord, collectives::tcp::Opening,
               collectives::nccl::RankReport, diagnostics::HostFacts, diagnostics::RankEnvironment,
               tools::doctor::RankFacts, tools::doctor::ProbeReport, tools::RankReport, selftest::RankResult,
               named::Announcement, named::Decision, named::Learned, named::Leaving, named::AllJoined, named::Doing>;

void use(const auto& /*message*/) {}

void use(const collectives::host::RankAddress& address) {
  collectives::host::RankAddress other;
  other.memory_left = 8U << 20U;
  const auto domains = collectives::host::find_domains({other, address}, {0, 0});
  require(domains.leaders[0] == 0 && domains.leaders[1] >= 0 && domains.leaders[1] <= 1);
  require(domains.reasons[1].empty() == (domains.leaders[1] == 0));
}

void use(const diagnostics::HostFacts& facts) {
  const auto job = diagnostics::join_hosts({facts}, true);
  const auto verdict = diagnostics::judge_hang(job, 1);
  require(!diagnostics::hang_text(job, verdict).empty() && !diagnostics::hang_json(job, verdict).empty());
}

void use(diagnostics::RankEnvironment environment) {
  environment.rank = 0;  // as who collects checks it
  require(!diagnostics::fold({environment}).to_json().empty());
}

void use(tools::doctor::RankFacts facts) {
  facts.rank = facts.node = 0;
  tools::doctor::JobFacts job;
  tools::doctor::NodeRecord node;
  node.ranks = {0};
  if (facts.of_node) node.facts = *facts.of_node;
  job.nodes.push_back(std::move(node));
  job.ranks.push_back(std::move(facts));
  tools::doctor::examine(job, [](const tools::doctor::Rule&) { return true; });
}

template <class T>
Bytes sample() {
  if constexpr (base::message::kIs<T, std::variant>) {
    return base::encode(T{tests::sample_message<std::variant_alternative_t<1, T>>()});
  } else {
    return base::encode(tests::sample_message<T>());
  }
}

template <class T>
void check(std::span<const std::byte> bytes, bool changes) {
  static const Bytes kSample = sample<T>();
  Bytes message(bytes.begin(), bytes.end());
  if (changes) {
    message = kSample;
    for (; bytes.size() >= 3; bytes = bytes.subspan(3)) {
      const auto at = std::to_integer<std::size_t>(bytes[0]) << 8U | std::to_integer<std::size_t>(bytes[1]);
      message[at % message.size()] = bytes[2];
    }
  }
  try {
    const T value = base::decode<T>(message);
    const Bytes again = base::encode(value);
    require(base::encode(base::decode<T>(again)) == again);
    use(value);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::protocol);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto bytes = std::as_bytes(std::span{data, size}).subspan(2);
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((data[0] % sizeof...(I) == I ? check<std::tuple_element_t<I, Messages>>(bytes, data[1] % 2 == 1) : void()), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<Messages>>{});
  return 0;
}
