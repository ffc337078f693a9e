// The fields of all messages and their ranges, listed once: a new field or message is added here and in messages.hpp.
#pragma once

#include <cstdint>
#include <limits>

#include "base/message_fields.hpp"
#include "control/messages.hpp"

namespace ddp::diagnostics {

constexpr auto description(const StackGroup*) {
  return base::describe({"StackGroup"}, base::field<&StackGroup::ranks>(base::kCount),
                        base::field<&StackGroup::tool>(base::kPlainName), base::field<&StackGroup::text>());
}
constexpr auto description(const StackNote*) {
  return base::describe({"StackNote"}, base::field<&StackNote::hosts>(base::kPlainName),
                        base::field<&StackNote::text>());
}
constexpr auto description(const StepProgress*) {
  return base::describe({"StepProgress"}, base::field<&StepProgress::rank>(base::kCount),
                        base::field<&StepProgress::steps>(), base::field<&StepProgress::step_ns>(),
                        base::field<&StepProgress::communication_ns>(), base::field<&StepProgress::hidden_ns>(),
                        base::field<&StepProgress::straggler_rank>(base::kCountOrNone),
                        base::field<&StepProgress::straggler_delay_ns>());
}

}  // namespace ddp::diagnostics

namespace ddp::launcher {

constexpr auto description(const RankEnd*) {
  return base::describe({"RankEnd"}, base::field<&RankEnd::code>(base::kExitStatus), base::field<&RankEnd::by_signal>(),
                        base::field<&RankEnd::core_dumped>(), base::field<&RankEnd::time>());
}
constexpr auto description(const RankTraces*) {
  return base::describe({"RankTraces"}, base::field<&RankTraces::error_file>(),
                        base::field<&RankTraces::error_content>(), base::field<&RankTraces::stderr_tail>(),
                        base::field<&RankTraces::oom>(), base::field<&RankTraces::stdout_log>(),
                        base::field<&RankTraces::stderr_log>(), base::field<&RankTraces::stderr_shown>(),
                        base::field<&RankTraces::python>(), base::field<&RankTraces::interpreter>(),
                        base::field<&RankTraces::pmix_server>());
}
constexpr auto description(const AbortCall*) {
  return base::describe({"AbortCall"}, base::field<&AbortCall::status>(), base::field<&AbortCall::message>());
}

}  // namespace ddp::launcher

namespace ddp::launcher::control {

using base::describe, base::field, base::Rule;
using base::kCount, base::kCountOrNone, base::kExitStatus, base::kPlainName, base::kPort, base::kSignal;

constexpr auto description(const Interface*) {
  return describe({"Interface"}, field<&Interface::name>(kPlainName), field<&Interface::address>(kPlainName),
                  field<&Interface::prefix_length>(Rule{.least = 0, .most = 128}), field<&Interface::ipv6>(),
                  field<&Interface::fabric>(), field<&Interface::routes_to_peers>(),
                  field<&Interface::rate_mbps>(Rule{.least = 0, .most = std::numeric_limits<std::uint32_t>::max()}));
}
constexpr auto description(const Hello*) {
  return describe({"Hello"}, field<&Hello::version>(kPlainName), field<&Hello::run_id>(kPlainName),
                  field<&Hello::host>(kPlainName), field<&Hello::addresses>(kPlainName),
                  field<&Hello::order>(kCountOrNone), field<&Hello::nproc>(kCount), field<&Hello::role>(),
                  field<&Hello::program>(), field<&Hello::pid>(kCount), field<&Hello::interfaces>());
}
constexpr auto description(const AttemptPrepared*) {
  return describe({"AttemptPrepared"}, field<&AttemptPrepared::epoch>(kCount),
                  field<&AttemptPrepared::store_port>(kPort), field<&AttemptPrepared::store_key>());
}
constexpr auto description(const RanksStarted*) {
  return describe({"RanksStarted"}, field<&RanksStarted::epoch>(kCount), field<&RanksStarted::pids>(),
                  field<&RanksStarted::description>());
}
constexpr auto description(const AttemptFailed*) {
  return describe({"AttemptFailed"}, field<&AttemptFailed::epoch>(kCount), field<&AttemptFailed::message>(),
                  field<&AttemptFailed::exit_status>(kExitStatus), field<&AttemptFailed::may_recover>());
}
constexpr auto description(const RankEnded*) {
  return describe({"RankEnded"}, field<&RankEnded::epoch>(kCount), field<&RankEnded::local_rank>(kCount),
                  field<&RankEnded::end>(), field<&RankEnded::traces>());
}
constexpr auto description(const RankAborted*) {
  return describe({"RankAborted"}, field<&RankAborted::epoch>(kCount), field<&RankAborted::local_rank>(kCount),
                  field<&RankAborted::call>());
}
constexpr auto description(const RankStopped*) {
  return describe({"RankStopped"}, field<&RankStopped::epoch>(kCount), field<&RankStopped::local_rank>(kCount),
                  field<&RankStopped::signal>(kSignal));
}
constexpr auto description(const AttemptCleaned*) {
  return describe({"AttemptCleaned"}, field<&AttemptCleaned::epoch>(kCount), field<&AttemptCleaned::store_refusals>());
}
constexpr auto description(const SignalReceived*) {
  return describe({"SignalReceived"}, field<&SignalReceived::signal>(kSignal), field<&SignalReceived::by_slurm>());
}
constexpr auto description(const NodeLayout*) {
  return describe({"NodeLayout"}, field<&NodeLayout::host>(kPlainName), field<&NodeLayout::nproc>(kCount),
                  field<&NodeLayout::role>(), field<&NodeLayout::addresses>(kPlainName),
                  field<&NodeLayout::socket_interface>(kPlainName), field<&NodeLayout::socket_reason>());
}
constexpr auto description(const PrepareAttempt*) {
  return describe({"PrepareAttempt"}, field<&PrepareAttempt::epoch>(kCount),
                  field<&PrepareAttempt::restart_count>(kCount), field<&PrepareAttempt::max_restarts>(kCount),
                  field<&PrepareAttempt::node_rank>(kCount), field<&PrepareAttempt::serve_store>(),
                  field<&PrepareAttempt::run_id>(kPlainName), field<&PrepareAttempt::name_space>(kPlainName),
                  field<&PrepareAttempt::log_name>(kPlainName), field<&PrepareAttempt::log_suffix>(kPlainName),
                  field<&PrepareAttempt::terminal_out>(), field<&PrepareAttempt::terminal_err>(),
                  field<&PrepareAttempt::console_window_bytes>(kCount), field<&PrepareAttempt::still_after_ms>(kCount),
                  field<&PrepareAttempt::nodes_lost>(kCount), field<&PrepareAttempt::input>(),
                  field<&PrepareAttempt::progress_ms>(kCount), field<&PrepareAttempt::nodes>());
}
constexpr auto description(const Input*) { return describe({"Input"}, field<&Input::data>(), field<&Input::end>()); }
constexpr auto description(const InputTaken*) { return describe({"InputTaken"}, field<&InputTaken::bytes>(kCount)); }
constexpr auto description(const StartAttempt*) {
  return describe({"StartAttempt"}, field<&StartAttempt::epoch>(kCount),
                  field<&StartAttempt::store_addresses>(kPlainName), field<&StartAttempt::store_port>(kPort),
                  field<&StartAttempt::store_key>());
}
constexpr auto description(const SignalRanks*) {
  return describe({"SignalRanks"}, field<&SignalRanks::epoch>(kCount), field<&SignalRanks::groups>(),
                  field<&SignalRanks::signal>(kSignal), field<&SignalRanks::may_have_reached_ranks>());
}
constexpr auto description(const EndAttempt*) {
  return describe({"EndAttempt"}, field<&EndAttempt::epoch>(kCount), field<&EndAttempt::drain_ms>(kCount));
}
constexpr auto description(const Finish*) {
  return describe({"Finish"}, field<&Finish::exit_status>(kExitStatus), field<&Finish::message>());
}
constexpr auto description(const Fence*) {
  return describe({"Fence"}, field<&Fence::epoch>(kCount), field<&Fence::ranks>(kCount), field<&Fence::data>(),
                  field<&Fence::status>());
}
// The rank may be one of PMIx's special ones, which are negative as int.
constexpr auto description(const ModexRequest*) {
  return describe({"ModexRequest"}, field<&ModexRequest::epoch>(kCount), field<&ModexRequest::id>(),
                  field<&ModexRequest::from_node>(kCountOrNone), field<&ModexRequest::rank>());
}
constexpr auto description(const ModexReply*) {
  return describe({"ModexReply"}, field<&ModexReply::epoch>(kCount), field<&ModexReply::id>(),
                  field<&ModexReply::to_node>(kCountOrNone), field<&ModexReply::status>(), field<&ModexReply::data>());
}
constexpr auto description(const Resting*) { return describe({"Resting"}, field<&Resting::rests>()); }
constexpr auto description(const RanksStill*) {
  return describe({"RanksStill"}, field<&RanksStill::epoch>(kCount), field<&RanksStill::still>());
}
constexpr auto description(const ObserveRanks*) {
  return describe({"ObserveRanks"}, field<&ObserveRanks::epoch>(kCount), field<&ObserveRanks::limit_ms>(kCount));
}
constexpr auto description(const RanksObserved*) {
  return describe({"RanksObserved"}, field<&RanksObserved::epoch>(kCount), field<&RanksObserved::facts>());
}
constexpr auto description(const CollectStacks*) {
  return describe({"CollectStacks"}, field<&CollectStacks::epoch>(kCount), field<&CollectStacks::limit_ms>(kCount));
}
constexpr auto description(const StacksCollected*) {
  return describe({"StacksCollected"}, field<&StacksCollected::epoch>(kCount), field<&StacksCollected::groups>(),
                  field<&StacksCollected::notes>());
}
constexpr auto description(const Progress*) {
  return describe({"Progress"}, field<&Progress::epoch>(kCount), field<&Progress::ranks>());
}
constexpr auto description(const ConsolePiece*) {
  return describe({"ConsolePiece"}, field<&ConsolePiece::writer>(kCount), field<&ConsolePiece::unprefixed>(),
                  field<&ConsolePiece::begins>(), field<&ConsolePiece::ends>(), field<&ConsolePiece::overwritten>(),
                  field<&ConsolePiece::prefix>(), field<&ConsolePiece::text>());
}
constexpr auto description(const ConsoleOutput*) {
  return describe({"ConsoleOutput"}, field<&ConsoleOutput::epoch>(kCount), field<&ConsoleOutput::error>(),
                  field<&ConsoleOutput::pieces>());
}
constexpr auto description(const ConsoleTaken*) {
  return describe({"ConsoleTaken"}, field<&ConsoleTaken::epoch>(kCount), field<&ConsoleTaken::error>(),
                  field<&ConsoleTaken::messages>(kCount));
}
constexpr auto description(const Message*) { return describe({"control message"}); }

}  // namespace ddp::launcher::control
