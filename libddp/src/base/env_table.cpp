#include "base/env_table.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/closest_word.hpp"

extern char** environ;

namespace ddp::base {
namespace {

constexpr std::array kTable{
    EnvVariable{"DDP_AS", EnvType::text, "", "horovod, mpi4py, horovod,mpi4py",
                "Python's imports of these names get [libddp's](../howto/horovod.md); ddprun's `--as` sets it."},
    EnvVariable{
        "DDP_BACKEND", EnvType::text, "auto",
        "**auto**, host, cpu, gloo, nccl, ddp, [a plugin's name](backends.md), cpu:NAME,cuda:NAME",
        "Backend of process groups whose program names none. host (everywhere also cpu, gloo): shared memory within a "
        "host, TCP between hosts. nccl: host, and [NCCL for CUDA tensors](gpu.md); cpu:NAME,cuda:NAME: another pair. "
        "auto: nccl where every rank has NCCL and a GPU of its own, else host. ddp: auto, also [for PyTorch "
        "programs](python.md#torchdistributed) that name none."},
    EnvVariable{"DDP_BACKEND_PATH", EnvType::text, "", "folder",
                "Where [backend plugins](backends.md#installing-and-selecting) are looked for first."},
    EnvVariable{"DDP_BIND", EnvType::text, "", "numa, core, socket, none",
                "[Placement policy](placement.md#cores): default of `--bind`; [binds](placement.md#who-binds-and-when) "
                "other launchers' ranks."},
    EnvVariable{
        "DDP_CHANGE_DIR", EnvType::text, "", "folder",
        "Where a rank of `ddprun --nnodes MIN:MAX` [learns that nodes change](ddprun.md#nodes-that-join-and-leave); "
        "ddprun sets it."},
    EnvVariable{"DDP_CHECK_COLLECTIVES", EnvType::boolean, "0", "",
                "Compare all ranks' arguments before each collective, by one small all_gather; otherwise only waiting "
                "ranks notice differences."},
    EnvVariable{"DDP_COLLECTIVE_TIMEOUT", EnvType::seconds, "600", "", "Deadline of collectives without their own."},
    EnvVariable{"DDP_CUDA_LIBRARY", EnvType::text, "", "file; the loader's `libcuda.so.1`",
                "CUDA's driver library, unless the process has one."},
    EnvVariable{
        "DDP_DUMP_ENV", EnvType::text, "", "stderr, file",
        "Where `World::init` writes [all variables](ddp-info.md#env): a table, or JSON into the file. Set it on "
        "all ranks."},
    EnvVariable{
        "DDP_FLIGHT_DIR", EnvType::text, "", "folder",
        "Existing folder where each rank writes its [last operations](ddp-info.md#flight) when a process group fails."},
    EnvVariable{"DDP_FLIGHT_SIGNAL", EnvType::choice, "", "USR1|USR2|HUP|WINCH",
                "Signal at which a rank does so and continues; the program must not handle it."},
    EnvVariable{"DDP_FLIGHT_SIZE", EnvType::text, "2000", "0 to 100000",
                "Operations that a rank keeps, 128 bytes each."},
    EnvVariable{"DDP_GENERATION", EnvType::text, "", "number",
                "How often ddprun has started the job's ranks before, for any reason; it sets it for all ranks."},
    EnvVariable{"DDP_GPUS", EnvType::text, "all", "**all**, one, none",
                "Default of `--gpus`: ranks see all GPUs, local rank i's first, or their own; none sets nothing."},
    EnvVariable{"DDP_INIT_TIMEOUT", EnvType::seconds, "120", "",
                "Limit of `World::init`, and for connecting a process group."},
    EnvVariable{"DDP_LAUNCH", EnvType::choice, "", "pmix|pmi2|pmi1|torchrun|openmpi|slurm|single",
                "The only [source](launching.md#how-the-source-is-chosen) of rank and size."},
    EnvVariable{"DDP_LOG_LEVEL", EnvType::choice, "warning", "debug|info|warning|error|off",
                "Least severe log lines on standard error. info: identity, source, reason and interface."},
    EnvVariable{"DDP_MEMORY_DOMAIN", EnvType::text, "", "text",
                "Ranks with different values use TCP, as on several hosts, not shared memory."},
    EnvVariable{"DDP_METRICS_ADDRESS", EnvType::text, "127.0.0.1", "text; **127.0.0.1**",
                "Default of `--metrics-address`, `--ddp-metrics`: where nodes [answer "
                "Prometheus](observability.md#metrics)."},
    EnvVariable{"DDP_METRICS_PORT", EnvType::text, "none", "port, auto, **none**",
                "Default of `--metrics-port`, `--ddp-metrics`. Ranks do not see it."},
    EnvVariable{"DDP_MUNGE_SOCKET", EnvType::text, "", "text; libmunge's",
                "munged's socket, for ddpruns [by hand](ddprun.md#by-hand)."},
    EnvVariable{
        "DDP_NCCL_CONNECT", EnvType::choice, "eager", "eager|lazy",
        "When a process group [connects NCCL](gpu.md#which-backend): at once, or with its first collective of CUDA "
        "tensors."},
    EnvVariable{"DDP_NCCL_LIBRARY", EnvType::text, "", "text; PyTorch's, then the loader's",
                "NCCL's file, for programs that have none loaded."},
    EnvVariable{"DDP_NCCL_REGISTER", EnvType::choice, "local", "local|off|window",
                "How NCCL knows [`ProcessGroup::allocate`](gpu.md#memory)'s memory."},
    EnvVariable{"DDP_NCCL_SPLIT", EnvType::boolean, "0", "",
                "[Subgroups](gpu.md#groups-of-some-ranks) split NCCL's communicator."},
    EnvVariable{"DDP_NCCL_STUCK_AFTER", EnvType::seconds, "30", "",
                "When a thread stuck in NCCL or the GPU's driver is logged."},
    EnvVariable{"DDP_NODE_CACHE", EnvType::text, "", "folder",
                "[Copies of checkpoints](training.md#checkpoints) in memory; ddprun sets it."},
    EnvVariable{"DDP_PEER_TIMEOUT", EnvType::seconds, "30", "",
                "When a rank or host without a sign of life counts as lost while others wait; at least 5."},
    EnvVariable{"DDP_RDZV_SECRET", EnvType::text, "", "text",
                "Random phrase that ddpruns [by hand](ddprun.md#by-hand) share."},
    EnvVariable{"DDP_SHM_MIB", EnvType::text, "8", "number",
                "MiB of shared memory for all process groups of a rank; the first takes 1, each further one less. When "
                "it is used up (8: by some 40 groups), further groups use TCP, with a warning."},
    EnvVariable{"DDP_SIMD", EnvType::choice, "auto", "auto|portable|avx2|avx512",
                "Vector instructions of reductions; auto: the processor's best. Results have the same bits."},
    EnvVariable{"DDP_SOCKET_IFNAME", EnvType::text, "", "text",
                "[Network interface](topology.md#the-network-between-nodes) between ranks."},
    EnvVariable{"DDP_TORCH_CACHE", EnvType::text, "", "text; `~/.cache/libddp`",
                "Folder of the compiled [adapter to PyTorch](python.md#torchdistributed)."},
    EnvVariable{"DDP_TRACE_DIR", EnvType::text, "", "folder",
                "Where each rank writes its first model's [trace](ddp-info.md#trace), after 5, 20 and 50 steps."},
};

constexpr std::string_view kPrefix = "DDP_";

[[noreturn]] void reject(std::string_view name, std::string_view value, std::string expected) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = fmt::format("reading the environment variable {}", name),
               .cause = fmt::format("'{}' is not {}", value, expected),
               .hint = fmt::format("correct or unset {}", name)}};
}

const EnvVariable& entry(std::string_view name) {
  const auto* found = std::find_if(kTable.begin(), kTable.end(), [&](const EnvVariable& v) { return v.name == name; });
  if (found == kTable.end()) throw std::logic_error(fmt::format("{} is missing from the table", name));
  return *found;
}

}  // namespace

std::span<const EnvVariable> env_table() { return kTable; }

Environment Environment::process() {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** line = environ; line != nullptr && *line != nullptr; ++line) {
    const std::string_view text{*line};
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment{std::move(variables)};
}

std::optional<std::string> Environment::raw(std::string_view name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end()) return std::nullopt;
  return found->second;
}

std::optional<int> Environment::number(std::string_view name) const {
  const auto value = raw(name);
  if (!value) return std::nullopt;
  int parsed = 0;
  const auto [end, status] = std::from_chars(value->data(), value->data() + value->size(), parsed);
  if (status != std::errc{} || end != value->data() + value->size() || parsed < 0) {
    reject(name, *value, "a whole number of 0 or more");
  }
  return parsed;
}

std::string Environment::text(std::string_view name) const {
  const EnvVariable& variable = entry(name);
  auto value = raw(name);
  if (!value || value->empty()) return std::string(variable.default_value);
  if (variable.type == EnvType::choice) {
    const std::string fenced = fmt::format("|{}|", variable.choices);
    if (value->find('|') != std::string::npos || fenced.find(fmt::format("|{}|", *value)) == std::string::npos) {
      reject(name, *value, fmt::format("one of {}", variable.choices));
    }
  }
  return *value;
}

std::chrono::milliseconds Environment::seconds(std::string_view name) const {
  const std::string value = text(name);
  double parsed = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (status != std::errc{} || end != value.data() + value.size() || !std::isfinite(parsed) || parsed <= 0 ||
      parsed > 1e8) {
    reject(name, value, "a number of seconds above 0");
  }
  return std::chrono::milliseconds(std::max(1LL, std::llround(parsed * 1000)));
}

bool Environment::boolean(std::string_view name) const {
  const std::string value = text(name);
  if (value == "1" || value == "true" || value == "yes" || value == "on") return true;
  if (value == "0" || value == "false" || value == "no" || value == "off") return false;
  reject(name, value, "1 or 0");
}

std::vector<std::pair<std::string, std::string>> Environment::unknown_ddp_variables() const {
  std::vector<std::string> known;
  for (const EnvVariable& variable : kTable) known.emplace_back(variable.name);
  std::vector<std::pair<std::string, std::string>> unknown;
  for (auto it = variables_.lower_bound(kPrefix); it != variables_.end() && it->first.starts_with(kPrefix); ++it) {
    // Other programs use our prefix, too: only names close to one of ours are reported.
    const std::size_t changes = plausible_changes(it->first.size() - kPrefix.size(), kTypingMistake);
    const std::string closest = closest_word(it->first, known, changes);
    if (!closest.empty() && closest != it->first) unknown.emplace_back(it->first, closest);
  }
  return unknown;
}

namespace {

constexpr auto kName = "DDP_PEER_TIMEOUT";
constexpr std::chrono::seconds kLeast{5};

}  // namespace

std::chrono::milliseconds peer_timeout(const Environment& environment) {
  const std::chrono::milliseconds timeout = environment.seconds(kName);
  if (timeout >= kLeast) return timeout;
  throw Error{
      {.code = ErrorCode::invalid_argument,
       .attempted = fmt::format("reading the environment variable {}", kName),
       .cause = fmt::format("'{}' s is too short: a healthy process may be stopped for 2 s", environment.text(kName)),
       .hint = fmt::format("give at least {} s, or unset it", kLeast.count())}};
}

}  // namespace ddp::base
