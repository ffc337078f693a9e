// Values of ddprun's options, which come from scripts and variables. Whatever the text, the parsers throw ExitError for
// wrong usage or give values inside their limits.
#include <variant>

#include "fuzz/fuzz.hpp"
#include "options/command_line.hpp"
#include "options/failure_options.hpp"
#include "options/job_options.hpp"
#include "options/output_options.hpp"
#include "options/rendezvous_options.hpp"
#include "outcome/exit_error.hpp"

namespace {

using namespace ddp::launcher;

const std::string kOption = "--option";

void read_streams(const std::string& text) {
  const StreamSelection streams = parse_streams(kOption, text);
  const auto known = [](Streams one) { return static_cast<int>(one) >= 0 && static_cast<int>(one) <= 3; };
  require(known(streams.all));
  for (const auto& [rank, one] : streams.by_local_rank) require(rank >= 0 && rank < kMaxRanksPerNode && known(one));
}

void read_size(const std::string& text) {
  const NodeRange nodes = parse_node_range(kOption, text);
  require(nodes.min >= 1 && nodes.min <= nodes.max && nodes.max <= kMaxNodes);
}

void read_ranks_per_node(const std::string& text) {
  const RanksPerNode ranks = parse_ranks_per_node(kOption, text);
  require(ranks.number >= 1 && ranks.number <= kMaxRanksPerNode);
}

void read_conf(const std::string& text) {
  RendezvousOptions rendezvous;
  std::vector<std::string> notices;
  parse_rendezvous_conf(kOption, text, rendezvous, notices);
  require(rendezvous.join_timeout.count() > 0 && rendezvous.read_timeout.count() > 0);
  require(rendezvous.static_timeout.count() > 0 && rendezvous.last_call_timeout.count() >= 0);
}

void read_rank_list(const std::string& text) {
  constexpr int kEnd = 1'000'000;
  const auto ranks = parse_rank_list(kOption, text, kEnd);
  require(!ranks.empty() && *ranks.begin() >= 0 && *ranks.rbegin() < kEnd);
}

void read_endpoint(const std::string& text) {
  const Endpoint endpoint = parse_endpoint(kOption, text);
  require(!endpoint.host.empty() && endpoint.host.find_first_of("[] ,") == std::string::npos);
  const bool ipv6 = endpoint.host.find(':') != std::string::npos;
  std::string written = ipv6 ? "[" + endpoint.host + "]" : endpoint.host;
  if (endpoint.port) written += ":" + std::to_string(*endpoint.port);
  const Endpoint again = parse_endpoint(kOption, written);
  require(again.host == endpoint.host && again.port == endpoint.port);
  require(parse_host(kOption, endpoint.host) == endpoint.host);
}

void read_names(const std::string& text) {
  for (const int signal : read_signals(text).signals) require(signal > 0 && signal <= 64 && can_be_passed_on(signal));
}

void read_filters(const std::string& text) {
  for (const std::string& filter : parse_filters(text)) require(!filter.empty());
}

/// Words between newlines are a whole command line.
void read_command_line(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  const auto result = parse_command_line(words, ddp::base::Environment{{}});
  if (const auto* options = std::get_if<LaunchOptions>(&result)) require(!options->command.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr void (*kReaders[])(const std::string&) = {&read_streams, &read_size,      &read_ranks_per_node,
                                                      &read_conf,    &read_rank_list, &read_endpoint,
                                                      &read_names,   &read_filters,   &read_command_line};
  if (size == 0) return 0;
  // the first character chooses the parser, so that seeds can be read
  const std::size_t which = (data[0] + std::size_t{256} - 'a') % std::size(kReaders);
  try {
    kReaders[which](std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  } catch (const ExitError& error) {
    require(error.exit_status() == kExitUsage);
  }
  return 0;
}
