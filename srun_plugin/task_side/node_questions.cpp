#include "task_side/node_questions.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <exception>
#include <thread>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/slurm_step.hpp"
#include "base/socket.hpp"
#include "srun_side/ddp_step_client.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr const char* kReading = "reading about the node's tasks";
// A list of nodes, or what the tasks of a node may use.
constexpr std::uint32_t kMostBytes = 64U << 20U;

void read_all(int fd, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    if (!base::wait_for(fd, POLLIN, deadline)) throw base::system_error(kReading, ETIMEDOUT, {}, ErrorCode::timeout);
    const ssize_t count = ::read(fd, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) throw base::system_error(kReading, errno);
    if (count == 0)
      throw Error{{.code = ErrorCode::peer_lost, .attempted = kReading, .cause = "the other process has ended"}};
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

// For ddp-step to reach its like beside srun, and the ranks' store on the node of rank 0.
constexpr std::chrono::seconds kReachLimit{12};
// Enough for a machine with many devices, and a GPU driver that must wake up.
constexpr std::chrono::seconds kPlanLimit{10};
// srun ends the step when a task has ended, and then may not read what the task has just said.
constexpr std::chrono::milliseconds kLastWords{300};

// A little more than ddp-info waits for nodes that do not take part.
constexpr std::chrono::seconds kBeforeLimit{75};
// Of `ddp-info before`: the nodes have errors; and of a step that is being ended, because another rank's have.
constexpr int kMustNotStart = 42;
constexpr int kStepEnds = 128 + SIGTERM;

int known(std::optional<int> number, const char* name) {
  if (number) return *number;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "finding out which task of the step this is",
               .cause = fmt::format("{} is not set", name)}};
}

/// "0,3,6", as SLURM_GTIDS has a node's tasks: perhaps those of its component, which has its own numbers.
std::vector<std::int32_t> ranks_of_node(std::string_view list, const TaskFacts& facts) {
  std::vector<std::int32_t> ranks;
  while (!list.empty()) {
    std::int32_t task = 0;
    const auto [end, status] = std::from_chars(list.data(), list.data() + list.size(), task);
    if (status != std::errc{}) break;
    ranks.push_back(task);
    list.remove_prefix(static_cast<std::size_t>(end - list.data()));
    if (!list.starts_with(',')) break;
    list.remove_prefix(1);
  }
  const bool whole = list.empty() && ranks.size() == static_cast<std::size_t>(facts.local_world_size) &&
                     facts.local_rank < facts.local_world_size;
  if (!whole) {
    ranks.clear();
    for (int local = 0; local < facts.local_world_size; ++local) ranks.push_back(local);
  }
  const std::int32_t offset =
      facts.rank -
      (facts.local_rank < static_cast<int>(ranks.size()) ? ranks[static_cast<std::size_t>(facts.local_rank)] : 0);
  for (std::int32_t& rank : ranks) rank += offset;
  return ranks;
}

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

NodeQuestion question_of(const NodeAsker& asker, const StepTicket& ticket, const TaskFacts& facts) {
  return {.version = DDP_VERSION_STRING,
          .step = facts.step,
          .program = asker.command,
          .node_list = facts.node_list,
          .node_name = facts.node_name,
          .srun_address = facts.srun_address,
          .port = ticket.port,
          .secret = ticket.secret,
          .node_rank = static_cast<std::uint32_t>(facts.node_rank),
          .num_nodes = static_cast<std::uint32_t>(facts.num_nodes),
          .world_size = static_cast<std::uint32_t>(facts.world_size),
          .ranks = facts.node_ranks,
          .first_rank = asker.first_rank,
          .has_channel = asker.ends >= 0,
          .patience_seconds = ticket.patience_seconds,
          .hang_report_after_s = ticket.options.hang_report_after_s,
          .progress_seconds = ticket.progress_seconds,
          .metrics_port = ticket.options.metrics_port,
          .metrics_address = ticket.options.metrics_address,
          .bind = ticket.options.bind,
          .gpus = ticket.options.gpus,
          .backend = ticket.options.backend};
}

void warn_not_placed(const TaskFacts& facts, std::string_view why) {
  warn(facts,
       fmt::format("tasks of this node are not bound to cores and get no settings for NCCL and OpenMP: {}", why));
}

/// Says what is wrong with an answer that has come.
void judge(const NodeAnswer& answer, const StepTicket& ticket, const TaskFacts& facts, const std::string& path) {
  if (answer.version != DDP_VERSION_STRING) {
    warn(facts, fmt::format("{} is of libddp {}, the plugin here of {}; install them from one package", path,
                            answer.version, DDP_VERSION_STRING));
  }
  const Meeting& meeting = answer.meeting;
  if (meeting.step_ends) return;
  if (!meeting.refusal.empty()) {
    base::write_stderr_line(fmt::format("ddp: error: rank {} on {}: {}; the program does not start", facts.rank,
                                        facts.node_name, meeting.refusal));
    std::this_thread::sleep_for(kLastWords);
    return;
  }
  if (!meeting.flaw.empty()) {
    const bool found = meeting.store_port != 0;
    warn(facts, fmt::format("tasks of this node will not reach the store at {} port {}: {}",
                            found ? meeting.store_address : facts.srun_address,
                            found ? meeting.store_port : ticket.port, meeting.flaw));
  }
  if (!answer.flaw.empty()) warn_not_placed(facts, answer.flaw);
}

}  // namespace

Bytes framed(const Bytes& message) { return std::move(base::ByteWriter{}.blob(message)).bytes(); }

Bytes read_framed(int fd, Deadline deadline) {
  std::array<std::byte, sizeof(std::uint32_t)> head{};
  read_all(fd, head, deadline);
  const auto size = base::ByteReader{head, "a message's size"}.integer<std::uint32_t>();
  if (size > kMostBytes) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = kReading,
                 .cause = fmt::format("a message of {} bytes is announced", size)}};
  }
  Bytes bytes(size);
  read_all(fd, bytes, deadline);
  return bytes;
}

TaskFacts read_task_facts(const base::Environment& environment, std::uint32_t local_tasks) {
  const auto step = base::SlurmStep::read(environment);
  TaskFacts facts{.rank = known(step.rank, "SLURM_PROCID"),
                  .world_size = known(step.num_tasks, "SLURM_STEP_NUM_TASKS"),
                  .local_rank = known(step.local_rank, "SLURM_LOCALID"),
                  .local_world_size = static_cast<int>(local_tasks),
                  .node_rank = known(step.node_rank, "SLURM_NODEID"),
                  .num_nodes = known(step.num_nodes, "SLURM_STEP_NUM_NODES"),
                  .step = step.name,
                  .node_list = step.node_list,
                  .node_name = step.node_name,
                  .srun_address = environment.raw("SLURM_LAUNCH_NODE_IPADDR").value_or("")};
  if (facts.srun_address.empty()) facts.srun_address = environment.raw("SLURM_SRUN_COMM_HOST").value_or("");
  facts.node_ranks = ranks_of_node(environment.raw("SLURM_GTIDS").value_or(""), facts);
  return facts;
}

std::chrono::seconds answer_limit(const StepTicket& ticket) { return kReachLimit + plan_limit(ticket); }

void warn(const TaskFacts& facts, std::string_view text) {
  base::write_stderr_line(fmt::format("ddp: warning: rank {} on {}: {}", facts.rank, facts.node_name, text));
}

NodeAnswer ask_node(const NodeAsker& asker, const StepTicket& ticket, const TaskFacts& facts,
                    const base::Environment& environment, const std::function<std::vector<Bytes>()>& resources) {
  if ((ticket.port == 0 || asker.ends < 0) && reports_wanted(ticket) && facts.local_rank == 0) {
    warn(facts, fmt::format("no metrics and no events on the steps of this node: {}",
                            ticket.port == 0 ? "they need the step's store"
                                             : "with job_container, Slurm prepares each task in a process of its own"));
  }
  std::optional<DdpStepClient> client;
  try {
    const std::string path = find_ddp_step(asker.helper);
    DdpStepClient& step =
        client.emplace(path, std::vector<std::string>{"agent"}, clean_environment(environment), asker.ends);
    step.send(framed(base::encode(question_of(asker, ticket, facts))), Deadline::after(kReachLimit));
    const NodeResources tasks{resources()};
    const Deadline deadline = Deadline::after(answer_limit(ticket));
    step.send(framed(base::encode(tasks)), deadline);
    step.close_input();
    const Bytes bytes = step.read_all(deadline);
    const int status = step.finish(deadline);
    if (step.terminated()) return {.meeting = {.step_ends = true}};
    if (status > 0 || bytes.empty()) {
      // it has said why on the same standard error, if it could start
      throw Error{{.code = ErrorCode::unavailable,
                   .attempted = fmt::format("asking {} about this machine", path),
                   .cause = fmt::format("it ended with exit status {}", status)}};
    }
    NodeAnswer answer = base::decode<NodeAnswer>(bytes);
    judge(answer, ticket, facts, path);
    return answer;
  } catch (const std::exception& error) {
    if (client && client->terminated()) return {.meeting = {.step_ends = true}};
    warn_not_placed(
        facts, ticket.port != 0 ? fmt::format("{}; nor will they reach the step's store", error.what()) : error.what());
    return {};
  }
}

bool run_before(const std::string& program, const BeforeProgram& before, const std::string& name,
                const base::Environment& environment) {
  const Deadline deadline = Deadline::after(kBeforeLimit);
  const std::string path = find_ddp_step(program);
  std::vector<std::string> arguments{"before"};
  if (before.doctor) arguments.emplace_back("--doctor");
  if (!before.dump.empty()) arguments.insert(arguments.end(), {"--dump", before.dump});
  if (!name.empty()) arguments.insert(arguments.end(), {"--program", name});
  std::string block;
  for (const auto& [variable, value] : environment.variables()) block += variable + "=" + value + '\0';
  DdpStepClient step(path, arguments, {});
  step.send(base::to_bytes(block), deadline);
  step.close_input();
  step.read_all(deadline);
  const int status = step.finish(deadline);
  if (status == 0 || status == kMustNotStart || status == kStepEnds) return status == 0;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "examining this step before its program starts",
               .cause = fmt::format("{} ended with exit status {}", path, status),
               .hint = "are ddp-step and ddp-info of the same package?"}};
}

}  // namespace ddp::srun_plugin
