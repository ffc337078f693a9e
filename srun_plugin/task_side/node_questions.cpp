#include "task_side/node_questions.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/byte_stream.hpp"
#include "base/log.hpp"
#include "srun_side/ddp_step_client.hpp"
#include "task_side/network_notes.hpp"
#include "task_side/node_plan.hpp"
#include "task_side/step_store.hpp"

namespace ddp::srun_plugin {
namespace {

// A little more than ddp-step gives a store that does not answer.
constexpr std::chrono::seconds kReachLimit{7};
// Enough for a machine with many devices, and a GPU driver that must wake up.
constexpr std::chrono::seconds kPlanLimit{10};
// Of the ranks' store, once rank 0's node has said where it is. The nodes wait for that while they make their plans.
constexpr std::chrono::seconds kPlaceLimit{7};
// srun ends the step when a task has ended, and then may not read what the task has just said.
constexpr std::chrono::milliseconds kLastWords{300};

/// The nodes wait for each other meanwhile.
std::chrono::seconds plan_limit(const StepTicket& ticket) {
  return kPlanLimit + std::chrono::seconds{ticket.patience_seconds};
}

/// The task's environment for ddp-step: without what makes the loader look elsewhere for libraries.
std::vector<std::string> clean_environment(const base::Environment& environment) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : environment.variables()) {
    if (!name.starts_with("LD_")) lines.push_back(name + "=" + value);
  }
  return lines;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// The first @p most words, and the rest as one more.
std::vector<std::string> split_words(std::string_view text, std::size_t most) {
  std::vector<std::string> words;
  while (words.size() < most && !text.empty()) {
    const auto end = text.find(' ');
    words.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  if (!text.empty()) words.emplace_back(text);
  return words;
}

}  // namespace

std::chrono::seconds answer_limit(const StepTicket& ticket) {
  return kReachLimit + plan_limit(ticket) + kPlaceLimit + std::chrono::seconds{5};
}

void warn(const TaskFacts& facts, std::string_view text) {
  base::write_stderr_line(fmt::format("ddp: warning: rank {} on {}: {}", facts.rank, facts.node_name, text));
}

void warn_not_placed(const TaskFacts& facts, const std::exception& error) {
  warn(facts, fmt::format("tasks of this node are not bound to cores and get no settings for NCCL and OpenMP: {}",
                          error.what()));
}

StoreReach reach_store(const std::string& program, const StepTicket& ticket, const TaskFacts& facts, int first_rank,
                       int ends, const std::string& command, const std::vector<std::string>& variables,
                       std::optional<DdpStepClient>& client) {
  if ((ticket.port == 0 || ends < 0) && reports_wanted(ticket) && facts.local_rank == 0) {
    warn(facts, fmt::format("no metrics and no events on the steps of this node: {}",
                            ticket.port == 0 ? "they need the step's store"
                                             : "with job_container, Slurm prepares each task in a process of its own"));
  }
  if (ticket.port == 0) return StoreReach::none;
  try {
    const Deadline deadline = Deadline::after(kReachLimit);
    const std::string path = find_ddp_step(program);
    DdpStepClient& witness = client.emplace(path, std::vector<std::string>{"witness"}, variables, ends);
    witness.send(
        base::to_bytes(fmt::format(
            "{} {} {} {} {} {} {} {:d} {:d} {} {} {} {} {} {} {} {} {}\n", facts.srun_address, ticket.port,
            ticket.secret, facts.node_name, facts.node_list, facts.world_size, first_rank, ends >= 0, facts.rank == 0,
            ticket.patience_seconds, ticket.options.hang_report_after_s, facts.step, facts.num_nodes,
            facts.local_world_size, ticket.options.metrics_port ? std::to_string(*ticket.options.metrics_port) : "none",
            ticket.options.metrics_address, ticket.progress_seconds, one_line(command))),
        deadline);
    const std::string answer = witness.read_line(deadline);
    constexpr std::string_view kError = "error ";
    constexpr std::string_view kKnown = "ddp-step 1 known ";
    if (answer.starts_with(kKnown)) {
      if (const std::string version = answer.substr(kKnown.size()); version != DDP_VERSION_STRING) {
        warn(facts, fmt::format("{} is of libddp {}, the plugin here of {}; install them from one package", path,
                                version, DDP_VERSION_STRING));
      }
      return StoreReach::reached;
    }
    constexpr std::string_view kRefused = "ddp-step 1 refused ";
    if (answer.starts_with(kRefused)) {
      base::write_stderr_line(fmt::format("ddp: error: rank {} on {}: {}; the program does not start", facts.rank,
                                          facts.node_name, answer.substr(kRefused.size())));
      std::this_thread::sleep_for(kLastWords);
      client.reset();
      return StoreReach::refused;
    }
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "reaching the step's store",
                 .cause = answer.starts_with(kError) ? answer.substr(kError.size())
                                                     : fmt::format("ddp-step answered '{}'", answer),
                 .hint = "does a firewall block that way? SrunPortRange in slurm.conf limits the ports"}};
  } catch (const std::exception& error) {
    const bool ends_now = client && client->terminated();
    client.reset();
    if (ends_now) return StoreReach::step_ends;
    warn(facts, fmt::format("tasks of this node will not reach the store at {} port {}: {}", facts.srun_address,
                            ticket.port, error.what()));
    return StoreReach::out_of_reach;
  }
}

RanksStorePlace find_ranks_store(std::optional<DdpStepClient>& witness, const StepTicket& ticket,
                                 const TaskFacts& facts) {
  RanksStorePlace place{.address = facts.srun_address, .port = ticket.port};
  if (!witness) return place;
  try {
    const std::string answer = witness->read_line(Deadline::after(kPlaceLimit));
    witness.reset();
    // "store ADDRESS PORT", "store ADDRESS PORT error TEXT", "error TEXT"
    const auto words = split_words(answer, 3);
    if (words.size() >= 3 && words[0] == "store") {
      const auto [end, status] = std::from_chars(words[2].data(), words[2].data() + words[2].size(), place.port);
      if (status == std::errc{} && end == words[2].data() + words[2].size()) place.address = words[1];
      if (words.size() == 3) return place;
    }
    constexpr std::string_view kError = "error ";
    const auto error = answer.find(kError);
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "reaching the ranks' store on the node of rank 0",
                 .cause = error == std::string::npos ? answer : answer.substr(error + kError.size()),
                 .hint = "does a firewall block ways between these nodes?"}};
  } catch (const std::exception& error) {
    warn(facts, fmt::format("tasks of this node will not reach the store at {} port {}: {}", place.address, place.port,
                            error.what()));
    return place;
  }
}

void excuse_node(const StepTicket& ticket, const TaskFacts& facts, StoreReach store) {
  if (store != StoreReach::reached || facts.num_nodes == 1) return;
  try {
    StepStore(facts.srun_address, ticket.port).set(note_key(facts.node_name), encode(NodeNote{}));
  } catch (const std::exception&) {  // they name this node after a while
  }
}

PlanAnswer make_plan(const std::string& program, const StepTicket& ticket, const TaskFacts& facts, StoreReach store,
                     std::vector<Bytes> resources, const base::Environment& environment) {
  std::optional<DdpStepClient> client;
  try {
    const std::string path = find_ddp_step(program);
    const Deadline deadline = Deadline::after(plan_limit(ticket));
    DdpStepClient& step = client.emplace(path, std::vector<std::string>{"plan"}, clean_environment(environment));
    step.send(encode(PlanQuestion{.bind = ticket.options.bind,
                                  .gpus = ticket.options.gpus,
                                  .backend = ticket.options.backend,
                                  .node_list = facts.node_list,
                                  .node_name = facts.node_name,
                                  .store_address = facts.srun_address,
                                  .store_port = store == StoreReach::reached ? ticket.port : std::uint16_t{0},
                                  .patience_seconds = ticket.patience_seconds,
                                  .resources = std::move(resources)}),
              deadline);
    step.close_input();
    Bytes answer = step.read_all(deadline);
    const int status = step.finish(deadline);
    if (step.terminated()) return {.step_ends = true};
    if (status > 0 || answer.empty()) {
      // it has said why on the same standard error, if it could start
      throw Error{{.code = ErrorCode::unavailable,
                   .attempted = fmt::format("asking {} about this machine", path),
                   .cause = fmt::format("it ended with exit status {}", status)}};
    }
    decode_plan(answer);  // here, so that one task of the node warns and not each
    return {.plan = std::move(answer), .step_ends = false};
  } catch (const std::exception& error) {
    if (client && client->terminated()) return {.step_ends = true};
    warn_not_placed(facts, error);
    excuse_node(ticket, facts, store);
    return {};
  }
}

}  // namespace ddp::srun_plugin
