// The fields of all messages and their ranges, listed once: a new field or message is added here and in messages.hpp.
#pragma once

#include <cstdint>
#include <limits>
#include <tuple>

#include "control/messages.hpp"

namespace ddp::launcher::control {

/// What a number, or each number of a list, may be; the type's own limits hold in any case.
struct Range {
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};
inline constexpr Range kAny{};
inline constexpr Range kCount{.least = 0};
inline constexpr Range kCountOrNone{.least = -1};
inline constexpr Range kPort{.least = 0, .most = 65535};
inline constexpr Range kExitStatus{.least = 0, .most = 255};  // what wait(2) can tell
inline constexpr Range kPrefixLength{.least = 0, .most = 128};
inline constexpr Range kRate{.least = 0, .most = std::numeric_limits<std::uint32_t>::max()};
inline constexpr Range kSignal{.least = 0, .most = 64};  // SIGRTMAX of Linux

/// What a text, or each text of a list, may be.
enum class TextRule : std::uint8_t {
  any,
  name,  ///< may become part of a path, an address or a line: at most 255 bytes, without '/' and control characters
};

template <class Owner, class Value>
struct Field {
  const char* name;
  Value Owner::*member;
  Range range = kAny;
  TextRule text = TextRule::any;

  constexpr Field(const char* field, Value Owner::*of) : name(field), member(of) {}
  constexpr Field(const char* field, Value Owner::*of, Range limits) : name(field), member(of), range(limits) {}
  constexpr Field(const char* field, Value Owner::*of, TextRule rule) : name(field), member(of), text(rule) {}
};
/// kName, for errors, and kFields, in the order in which they are sent.
template <class T>
struct Described;

template <>
struct Described<Interface> {
  static constexpr const char* kName = "Interface";
  static constexpr std::tuple kFields{Field{"name", &Interface::name, TextRule::name},
                                      Field{"address", &Interface::address, TextRule::name},
                                      Field{"prefix_length", &Interface::prefix_length, kPrefixLength},
                                      Field{"ipv6", &Interface::ipv6},
                                      Field{"fabric", &Interface::fabric},
                                      Field{"routes_to_peers", &Interface::routes_to_peers},
                                      Field{"rate_mbps", &Interface::rate_mbps, kRate}};
};

template <>
struct Described<Hello> {
  static constexpr const char* kName = "Hello";
  static constexpr std::tuple kFields{Field{"version", &Hello::version, TextRule::name},
                                      Field{"run_id", &Hello::run_id, TextRule::name},
                                      Field{"host", &Hello::host, TextRule::name},
                                      Field{"addresses", &Hello::addresses, TextRule::name},
                                      Field{"order", &Hello::order, kCountOrNone},
                                      Field{"nproc", &Hello::nproc, kCount},
                                      Field{"role", &Hello::role},
                                      Field{"program", &Hello::program},
                                      Field{"pid", &Hello::pid, kCount},
                                      Field{"interfaces", &Hello::interfaces}};
};

template <>
struct Described<AttemptPrepared> {
  static constexpr const char* kName = "AttemptPrepared";
  static constexpr std::tuple kFields{Field{"epoch", &AttemptPrepared::epoch, kCount},
                                      Field{"store_port", &AttemptPrepared::store_port, kPort},
                                      Field{"store_key", &AttemptPrepared::store_key}};
};

template <>
struct Described<RanksStarted> {
  static constexpr const char* kName = "RanksStarted";
  static constexpr std::tuple kFields{Field{"epoch", &RanksStarted::epoch, kCount}, Field{"pids", &RanksStarted::pids},
                                      Field{"description", &RanksStarted::description}};
};

template <>
struct Described<AttemptFailed> {
  static constexpr const char* kName = "AttemptFailed";
  static constexpr std::tuple kFields{Field{"epoch", &AttemptFailed::epoch, kCount},
                                      Field{"message", &AttemptFailed::message},
                                      Field{"exit_status", &AttemptFailed::exit_status, kExitStatus},
                                      Field{"may_recover", &AttemptFailed::may_recover}};
};

template <>
struct Described<RankEnd> {
  static constexpr const char* kName = "RankEnd";
  static constexpr std::tuple kFields{Field{"code", &RankEnd::code, kExitStatus},
                                      Field{"by_signal", &RankEnd::by_signal},
                                      Field{"core_dumped", &RankEnd::core_dumped}, Field{"time", &RankEnd::time}};
};

template <>
struct Described<RankTraces> {
  static constexpr const char* kName = "RankTraces";
  static constexpr std::tuple kFields{
      Field{"error_file", &RankTraces::error_file},     Field{"error_content", &RankTraces::error_content},
      Field{"stderr_tail", &RankTraces::stderr_tail},   Field{"oom", &RankTraces::oom},
      Field{"stdout_log", &RankTraces::stdout_log},     Field{"stderr_log", &RankTraces::stderr_log},
      Field{"stderr_shown", &RankTraces::stderr_shown}, Field{"python", &RankTraces::python},
      Field{"interpreter", &RankTraces::interpreter},   Field{"pmix_server", &RankTraces::pmix_server}};
};

template <>
struct Described<RankEnded> {
  static constexpr const char* kName = "RankEnded";
  static constexpr std::tuple kFields{Field{"epoch", &RankEnded::epoch, kCount},
                                      Field{"local_rank", &RankEnded::local_rank, kCount},
                                      Field{"end", &RankEnded::end}, Field{"traces", &RankEnded::traces}};
};

template <>
struct Described<AbortCall> {
  static constexpr const char* kName = "AbortCall";
  static constexpr std::tuple kFields{Field{"status", &AbortCall::status}, Field{"message", &AbortCall::message}};
};

template <>
struct Described<RankAborted> {
  static constexpr const char* kName = "RankAborted";
  static constexpr std::tuple kFields{Field{"epoch", &RankAborted::epoch, kCount},
                                      Field{"local_rank", &RankAborted::local_rank, kCount},
                                      Field{"call", &RankAborted::call}};
};

template <>
struct Described<RankStopped> {
  static constexpr const char* kName = "RankStopped";
  static constexpr std::tuple kFields{Field{"epoch", &RankStopped::epoch, kCount},
                                      Field{"local_rank", &RankStopped::local_rank, kCount},
                                      Field{"signal", &RankStopped::signal, kSignal}};
};

template <>
struct Described<AttemptCleaned> {
  static constexpr const char* kName = "AttemptCleaned";
  static constexpr std::tuple kFields{Field{"epoch", &AttemptCleaned::epoch, kCount},
                                      Field{"store_refusals", &AttemptCleaned::store_refusals}};
};

template <>
struct Described<SignalReceived> {
  static constexpr const char* kName = "SignalReceived";
  static constexpr std::tuple kFields{Field{"signal", &SignalReceived::signal, kSignal},
                                      Field{"by_slurm", &SignalReceived::by_slurm}};
};

template <>
struct Described<NodeLayout> {
  static constexpr const char* kName = "NodeLayout";
  static constexpr std::tuple kFields{Field{"host", &NodeLayout::host, TextRule::name},
                                      Field{"nproc", &NodeLayout::nproc, kCount},
                                      Field{"role", &NodeLayout::role},
                                      Field{"addresses", &NodeLayout::addresses, TextRule::name},
                                      Field{"socket_interface", &NodeLayout::socket_interface, TextRule::name},
                                      Field{"socket_reason", &NodeLayout::socket_reason}};
};

template <>
struct Described<PrepareAttempt> {
  static constexpr const char* kName = "PrepareAttempt";
  static constexpr std::tuple kFields{Field{"epoch", &PrepareAttempt::epoch, kCount},
                                      Field{"restart_count", &PrepareAttempt::restart_count, kCount},
                                      Field{"max_restarts", &PrepareAttempt::max_restarts, kCount},
                                      Field{"node_rank", &PrepareAttempt::node_rank, kCount},
                                      Field{"serve_store", &PrepareAttempt::serve_store},
                                      Field{"run_id", &PrepareAttempt::run_id, TextRule::name},
                                      Field{"name_space", &PrepareAttempt::name_space, TextRule::name},
                                      Field{"log_name", &PrepareAttempt::log_name, TextRule::name},
                                      Field{"log_suffix", &PrepareAttempt::log_suffix, TextRule::name},
                                      Field{"terminal_out", &PrepareAttempt::terminal_out},
                                      Field{"terminal_err", &PrepareAttempt::terminal_err},
                                      Field{"console_window_bytes", &PrepareAttempt::console_window_bytes, kCount},
                                      Field{"still_after_ms", &PrepareAttempt::still_after_ms, kCount},
                                      Field{"nodes_lost", &PrepareAttempt::nodes_lost, kCount},
                                      Field{"input", &PrepareAttempt::input},
                                      Field{"progress_ms", &PrepareAttempt::progress_ms, kCount},
                                      Field{"nodes", &PrepareAttempt::nodes}};
};

template <>
struct Described<Input> {
  static constexpr const char* kName = "Input";
  static constexpr std::tuple kFields{Field{"data", &Input::data}, Field{"end", &Input::end}};
};

template <>
struct Described<InputTaken> {
  static constexpr const char* kName = "InputTaken";
  static constexpr std::tuple kFields{Field{"bytes", &InputTaken::bytes, kCount}};
};

template <>
struct Described<StartAttempt> {
  static constexpr const char* kName = "StartAttempt";
  static constexpr std::tuple kFields{Field{"epoch", &StartAttempt::epoch, kCount},
                                      Field{"store_addresses", &StartAttempt::store_addresses, TextRule::name},
                                      Field{"store_port", &StartAttempt::store_port, kPort},
                                      Field{"store_key", &StartAttempt::store_key}};
};

template <>
struct Described<SignalRanks> {
  static constexpr const char* kName = "SignalRanks";
  static constexpr std::tuple kFields{Field{"epoch", &SignalRanks::epoch, kCount},
                                      Field{"groups", &SignalRanks::groups},
                                      Field{"signal", &SignalRanks::signal, kSignal},
                                      Field{"may_have_reached_ranks", &SignalRanks::may_have_reached_ranks}};
};

template <>
struct Described<EndAttempt> {
  static constexpr const char* kName = "EndAttempt";
  static constexpr std::tuple kFields{Field{"epoch", &EndAttempt::epoch, kCount},
                                      Field{"drain_ms", &EndAttempt::drain_ms, kCount}};
};

template <>
struct Described<Finish> {
  static constexpr const char* kName = "Finish";
  static constexpr std::tuple kFields{Field{"exit_status", &Finish::exit_status, kExitStatus},
                                      Field{"message", &Finish::message}};
};

template <>
struct Described<Fence> {
  static constexpr const char* kName = "Fence";
  static constexpr std::tuple kFields{Field{"epoch", &Fence::epoch, kCount}, Field{"ranks", &Fence::ranks, kCount},
                                      Field{"data", &Fence::data}, Field{"status", &Fence::status}};
};

template <>
struct Described<ModexRequest> {
  static constexpr const char* kName = "ModexRequest";
  // The rank may be one of PMIx's special ones, which are negative as int.
  static constexpr std::tuple kFields{Field{"epoch", &ModexRequest::epoch, kCount}, Field{"id", &ModexRequest::id},
                                      Field{"from_node", &ModexRequest::from_node, kCountOrNone},
                                      Field{"rank", &ModexRequest::rank}};
};

template <>
struct Described<ModexReply> {
  static constexpr const char* kName = "ModexReply";
  static constexpr std::tuple kFields{Field{"epoch", &ModexReply::epoch, kCount}, Field{"id", &ModexReply::id},
                                      Field{"to_node", &ModexReply::to_node, kCountOrNone},
                                      Field{"status", &ModexReply::status}, Field{"data", &ModexReply::data}};
};

template <>
struct Described<Resting> {
  static constexpr const char* kName = "Resting";
  static constexpr std::tuple kFields{Field{"rests", &Resting::rests}};
};

template <>
struct Described<RanksStill> {
  static constexpr const char* kName = "RanksStill";
  static constexpr std::tuple kFields{Field{"epoch", &RanksStill::epoch, kCount}, Field{"still", &RanksStill::still}};
};

template <>
struct Described<ObserveRanks> {
  static constexpr const char* kName = "ObserveRanks";
  static constexpr std::tuple kFields{Field{"epoch", &ObserveRanks::epoch, kCount},
                                      Field{"limit_ms", &ObserveRanks::limit_ms, kCount}};
};

template <>
struct Described<RanksObserved> {
  static constexpr const char* kName = "RanksObserved";
  static constexpr std::tuple kFields{Field{"epoch", &RanksObserved::epoch, kCount},
                                      Field{"facts", &RanksObserved::facts}};
};

template <>
struct Described<CollectStacks> {
  static constexpr const char* kName = "CollectStacks";
  static constexpr std::tuple kFields{Field{"epoch", &CollectStacks::epoch, kCount},
                                      Field{"limit_ms", &CollectStacks::limit_ms, kCount}};
};

template <>
struct Described<StackGroup> {
  static constexpr const char* kName = "StackGroup";
  static constexpr std::tuple kFields{Field{"ranks", &StackGroup::ranks, kCount},
                                      Field{"tool", &StackGroup::tool, TextRule::name},
                                      Field{"text", &StackGroup::text}};
};

template <>
struct Described<StackNote> {
  static constexpr const char* kName = "StackNote";
  static constexpr std::tuple kFields{Field{"hosts", &StackNote::hosts, TextRule::name},
                                      Field{"text", &StackNote::text}};
};

template <>
struct Described<StacksCollected> {
  static constexpr const char* kName = "StacksCollected";
  static constexpr std::tuple kFields{Field{"epoch", &StacksCollected::epoch, kCount},
                                      Field{"groups", &StacksCollected::groups},
                                      Field{"notes", &StacksCollected::notes}};
};

template <>
struct Described<RankProgress> {
  static constexpr const char* kName = "RankProgress";
  static constexpr std::tuple kFields{Field{"rank", &RankProgress::rank, kCount},
                                      Field{"steps", &RankProgress::steps},
                                      Field{"step_ns", &RankProgress::step_ns},
                                      Field{"communication_ns", &RankProgress::communication_ns},
                                      Field{"hidden_ns", &RankProgress::hidden_ns},
                                      Field{"straggler_rank", &RankProgress::straggler_rank, kCountOrNone},
                                      Field{"straggler_delay_ns", &RankProgress::straggler_delay_ns}};
};

template <>
struct Described<Progress> {
  static constexpr const char* kName = "Progress";
  static constexpr std::tuple kFields{Field{"epoch", &Progress::epoch, kCount}, Field{"ranks", &Progress::ranks}};
};

template <>
struct Described<ConsolePiece> {
  static constexpr const char* kName = "ConsolePiece";
  static constexpr std::tuple kFields{Field{"writer", &ConsolePiece::writer, kCount},
                                      Field{"unprefixed", &ConsolePiece::unprefixed},
                                      Field{"begins", &ConsolePiece::begins},
                                      Field{"ends", &ConsolePiece::ends},
                                      Field{"overwritten", &ConsolePiece::overwritten},
                                      Field{"prefix", &ConsolePiece::prefix},
                                      Field{"text", &ConsolePiece::text}};
};

template <>
struct Described<ConsoleOutput> {
  static constexpr const char* kName = "ConsoleOutput";
  static constexpr std::tuple kFields{Field{"epoch", &ConsoleOutput::epoch, kCount},
                                      Field{"error", &ConsoleOutput::error}, Field{"pieces", &ConsoleOutput::pieces}};
};

template <>
struct Described<ConsoleTaken> {
  static constexpr const char* kName = "ConsoleTaken";
  static constexpr std::tuple kFields{Field{"epoch", &ConsoleTaken::epoch, kCount},
                                      Field{"error", &ConsoleTaken::error},
                                      Field{"messages", &ConsoleTaken::messages, kCount}};
};

}  // namespace ddp::launcher::control
