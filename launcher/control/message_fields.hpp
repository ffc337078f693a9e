// The fields of all messages and their ranges, listed once: a new field or message is added here and in messages.hpp.
#pragma once

#include <cstdint>
#include <limits>

#include "base/message_fields.hpp"
#include "control/messages.hpp"

namespace ddp::launcher {

constexpr auto description(const RankEnd*) {
  return base::describe({"RankEnd"}, base::fields<&RankEnd::code>(base::kExitStatus),
                        base::fields<&RankEnd::by_signal, &RankEnd::core_dumped, &RankEnd::time, &RankEnd::restarts>());
}
constexpr auto description(const RankTraces*) {
  using T = RankTraces;
  return base::describe({"RankTraces"},
                        base::fields<&T::error_file, &T::error_content, &T::stderr_tail, &T::oom, &T::stdout_log,
                                     &T::stderr_log, &T::stderr_shown, &T::python, &T::interpreter, &T::pmix_server>());
}
constexpr auto description(const AbortCall*) {
  return base::describe({"AbortCall"}, base::fields<&AbortCall::status, &AbortCall::message>());
}

}  // namespace ddp::launcher

namespace ddp::launcher::control {

using base::describe, base::fields, base::Rule;
using base::kCount, base::kCountOrNone, base::kExitStatus, base::kPlainName, base::kPort, base::kSignal;

constexpr Rule kRole{.longest = 255};  // kMaxRoleBytes of the options

constexpr auto description(const Interface*) {
  return describe({"Interface"}, fields<&Interface::name, &Interface::address>(kPlainName),
                  fields<&Interface::prefix_length>(Rule{.least = 0, .most = 128}),
                  fields<&Interface::ipv6, &Interface::fabric, &Interface::routes_to_peers>(),
                  fields<&Interface::rate_mbps>(Rule{.least = 0, .most = std::numeric_limits<std::uint32_t>::max()}));
}
constexpr auto description(const Hello*) {
  return describe(
      {"Hello"},
      fields<&Hello::version, &Hello::run_id, &Hello::host, &Hello::addresses, &Hello::allocation, &Hello::slurm_node>(
          kPlainName),
      fields<&Hello::order>(kCountOrNone), fields<&Hello::nproc, &Hello::pid>(kCount), fields<&Hello::role>(kRole),
      fields<&Hello::program, &Hello::interfaces, &Hello::settings, &Hello::warms>());
}
constexpr auto description(const StepTasks*) {
  return describe({"StepTasks"}, fields<&StepTasks::node_list>(), fields<&StepTasks::world_size>(kCount),
                  fields<&StepTasks::ranks>(kCount));
}
constexpr auto description(const RankEndNoted*) {
  return describe({"RankEndNoted"}, fields<&RankEndNoted::epoch>(kCount), fields<&RankEndNoted::local_rank>(kCount));
}
constexpr auto description(const AttemptPrepared*) {
  return describe({"AttemptPrepared"}, fields<&AttemptPrepared::epoch>(kCount),
                  fields<&AttemptPrepared::store_port>(kPort), fields<&AttemptPrepared::store_key>());
}
constexpr auto description(const RanksStarted*) {
  return describe({"RanksStarted"}, fields<&RanksStarted::epoch>(kCount),
                  fields<&RanksStarted::pids, &RanksStarted::description>());
}
constexpr auto description(const AttemptFailed*) {
  return describe({"AttemptFailed"}, fields<&AttemptFailed::epoch>(kCount),
                  fields<&AttemptFailed::message, &AttemptFailed::may_recover>(),
                  fields<&AttemptFailed::exit_status>(kExitStatus));
}
constexpr auto description(const RankEnded*) {
  return describe({"RankEnded"}, fields<&RankEnded::epoch, &RankEnded::local_rank>(kCount),
                  fields<&RankEnded::end, &RankEnded::traces>());
}
constexpr auto description(const RankAborted*) {
  return describe({"RankAborted"}, fields<&RankAborted::epoch, &RankAborted::local_rank>(kCount),
                  fields<&RankAborted::call>());
}
constexpr auto description(const RankStopped*) {
  return describe({"RankStopped"}, fields<&RankStopped::epoch, &RankStopped::local_rank>(kCount),
                  fields<&RankStopped::signal>(kSignal));
}
constexpr auto description(const AttemptCleaned*) {
  return describe({"AttemptCleaned"}, fields<&AttemptCleaned::epoch>(kCount),
                  fields<&AttemptCleaned::store_refusals>());
}
constexpr auto description(const SignalReceived*) {
  return describe({"SignalReceived"}, fields<&SignalReceived::signal>(kSignal), fields<&SignalReceived::by_slurm>());
}
constexpr auto description(const NodeLayout*) {
  return describe({"NodeLayout"},
                  fields<&NodeLayout::host, &NodeLayout::addresses, &NodeLayout::socket_interface>(kPlainName),
                  fields<&NodeLayout::nproc>(kCount), fields<&NodeLayout::role>(kRole),
                  fields<&NodeLayout::socket_reason>(Rule{.longest = 511, .cut = true}));
}
constexpr auto description(const PrepareAttempt*) {
  using T = PrepareAttempt;
  return describe({"PrepareAttempt"},
                  fields<&T::epoch, &T::restart_count, &T::max_restarts, &T::node_rank, &T::console_window_bytes,
                         &T::still_after_ms, &T::nodes_lost, &T::progress_ms, &T::leave_grace_ms>(kCount),
                  fields<&T::serve_store, &T::terminal_out, &T::terminal_err, &T::input, &T::elastic>(),
                  fields<&T::run_id, &T::name_space, &T::log_name, &T::log_suffix>(kPlainName), fields<&T::nodes>());
}
constexpr auto description(const WarmWorkersReady*) {
  return describe({"WarmWorkersReady"}, fields<&WarmWorkersReady::all>());
}
constexpr auto description(const Input*) { return describe({"Input"}, fields<&Input::data, &Input::end>()); }
constexpr auto description(const InputTaken*) { return describe({"InputTaken"}, fields<&InputTaken::bytes>(kCount)); }
constexpr auto description(const StartAttempt*) {
  return describe({"StartAttempt"}, fields<&StartAttempt::epoch>(kCount),
                  fields<&StartAttempt::store_addresses>(kPlainName), fields<&StartAttempt::store_port>(kPort),
                  fields<&StartAttempt::store_key>());
}
constexpr auto description(const SignalRanks*) {
  return describe({"SignalRanks"}, fields<&SignalRanks::epoch>(kCount),
                  fields<&SignalRanks::groups, &SignalRanks::may_have_reached_ranks>(),
                  fields<&SignalRanks::signal>(kSignal));
}
constexpr auto description(const KillRanks*) {
  return describe({"KillRanks"}, fields<&KillRanks::epoch, &KillRanks::local_ranks>(kCount));
}
constexpr auto description(const EndAttempt*) {
  return describe({"EndAttempt"}, fields<&EndAttempt::epoch, &EndAttempt::drain_ms>(kCount));
}
constexpr auto description(const Finish*) {
  return describe({"Finish"}, fields<&Finish::exit_status>(kExitStatus), fields<&Finish::message>());
}
constexpr auto description(const Fence*) {
  return describe({"Fence"}, fields<&Fence::epoch, &Fence::ranks>(kCount), fields<&Fence::data, &Fence::status>());
}
// The rank may be one of PMIx's special ones, which are negative as int.
constexpr auto description(const ModexRequest*) {
  return describe({"ModexRequest"}, fields<&ModexRequest::epoch>(kCount),
                  fields<&ModexRequest::id, &ModexRequest::rank>(), fields<&ModexRequest::from_node>(kCountOrNone));
}
constexpr auto description(const ModexReply*) {
  return describe({"ModexReply"}, fields<&ModexReply::epoch>(kCount),
                  fields<&ModexReply::id, &ModexReply::status, &ModexReply::data>(),
                  fields<&ModexReply::to_node>(kCountOrNone));
}
constexpr auto description(const FindAbsent*) {
  return describe({"FindAbsent"}, fields<&FindAbsent::epoch>(kCount), fields<&FindAbsent::name>(kPlainName),
                  fields<&FindAbsent::limit_ms>(kCount));
}
constexpr auto description(const RankRange*) {
  return describe({"RankRange"}, fields<&RankRange::first>(kCount),
                  fields<&RankRange::count>(Rule{.least = 1, .most = 1 << 30}));
}
constexpr auto description(const AbsentFound*) {
  return describe({"AbsentFound"}, fields<&AbsentFound::epoch>(kCount), fields<&AbsentFound::name>(kPlainName),
                  fields<&AbsentFound::ranks>());
}
constexpr auto description(const JoinTaken*) {
  return describe({"JoinTaken"}, fields<&JoinTaken::spare>(), fields<&JoinTaken::rest_ms>(kCount));
}
constexpr auto description(const AllocationHello*) {
  return describe({"AllocationHello"}, fields<&AllocationHello::allocation, &AllocationHello::host>(kPlainName),
                  fields<&AllocationHello::pid>(kCount));
}
constexpr auto description(const ResizeAsked*) {
  return describe({"ResizeAsked"}, fields<&ResizeAsked::nodes>(kCount), fields<&ResizeAsked::spares>(kCountOrNone),
                  fields<&ResizeAsked::drain, &ResizeAsked::host>(kPlainName));
}
constexpr auto description(const NodesChange*) {
  return describe({"NodesChange"}, fields<&NodesChange::epoch, &NodesChange::waiting>(kCount),
                  fields<&NodesChange::pending>());
}
constexpr auto description(const Resting*) { return describe({"Resting"}, fields<&Resting::rests>()); }
constexpr auto description(const RanksStill*) {
  return describe({"RanksStill"}, fields<&RanksStill::epoch>(kCount), fields<&RanksStill::still>());
}
constexpr auto description(const ObserveRanks*) {
  return describe({"ObserveRanks"}, fields<&ObserveRanks::epoch, &ObserveRanks::limit_ms>(kCount));
}
constexpr auto description(const RanksObserved*) {
  return describe({"RanksObserved"}, fields<&RanksObserved::epoch>(kCount), fields<&RanksObserved::facts>());
}
constexpr auto description(const CollectStacks*) {
  return describe({"CollectStacks"}, fields<&CollectStacks::epoch, &CollectStacks::limit_ms>(kCount));
}
constexpr auto description(const StacksCollected*) {
  return describe({"StacksCollected"}, fields<&StacksCollected::epoch>(kCount),
                  fields<&StacksCollected::groups, &StacksCollected::notes>());
}
constexpr auto description(const Progress*) {
  return describe({"Progress"}, fields<&Progress::epoch>(kCount), fields<&Progress::ranks>());
}
constexpr auto description(const ConsolePiece*) {
  return describe({"ConsolePiece"}, fields<&ConsolePiece::writer>(kCount),
                  fields<&ConsolePiece::unprefixed, &ConsolePiece::begins, &ConsolePiece::ends,
                         &ConsolePiece::overwritten, &ConsolePiece::prefix, &ConsolePiece::text>());
}
constexpr auto description(const ConsoleOutput*) {
  return describe({"ConsoleOutput"}, fields<&ConsoleOutput::epoch>(kCount),
                  fields<&ConsoleOutput::error, &ConsoleOutput::pieces>());
}
constexpr auto description(const ConsoleTaken*) {
  return describe({"ConsoleTaken"}, fields<&ConsoleTaken::epoch, &ConsoleTaken::messages>(kCount),
                  fields<&ConsoleTaken::error>());
}
constexpr auto description(const Message*) { return describe({"control message"}); }

}  // namespace ddp::launcher::control
