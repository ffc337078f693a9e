#include "srun_side/plugin_options.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/bytes.hpp>
#include <ddp/error.hpp>

#include "base/backend_file.hpp"
#include "base/closest_word.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/message.hpp"
#include "base/unique_fd.hpp"

namespace ddp::srun_plugin {
namespace {

// Slurm's variable that passes --ddp of sbatch or salloc to the srun of a step.
constexpr const char* kInheritedVariable = "_SLURM_SPANK_OPTION_ddp_ddp";

void take_default(Lookup lookup, const char* variable, Option option, PluginOptions& options) {
  const auto value = lookup(variable);
  if (!value || value->empty()) return;
  set_word(options, option, std::string("reading the environment variable ") + variable, *value);
}

constexpr unsigned kOneDay_s = 24 * 60 * 60;

/// Reads a number from 1 to @p most.
unsigned parse_whole(const std::string& attempted, std::string_view text, unsigned most, const char* unit) {
  unsigned number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status == std::errc{} && end == text.data() + text.size() && number >= 1 && number <= most) return number;
  base::throw_invalid_argument(attempted, "'" + std::string(text) + "' is not a number of " + unit,
                               "give one from 1 to " + std::to_string(most));
}

void set_port(PluginOptions& options, const std::string& attempted, std::string_view text) {
  if (text == "none") {
    options.metrics_port.reset();
  } else if (text == "auto") {
    options.metrics_port = 0;
  } else {
    options.metrics_port = static_cast<std::uint16_t>(parse_whole(attempted, text, 65'535, "a port"));
  }
}

void set_address(PluginOptions& options, const std::string& attempted, std::string_view text) {
  const std::string address(text);
  in6_addr ignored{};
  if (::inet_pton(AF_INET, address.c_str(), &ignored) != 1 && ::inet_pton(AF_INET6, address.c_str(), &ignored) != 1) {
    base::throw_invalid_argument(attempted, "'" + address + "' is not a numeric address",
                                 "give one of each node's addresses: 127.0.0.1, or 0.0.0.0 for all");
  }
  options.metrics_address = address;
}

/// Reads "9464", "auto", "0.0.0.0:9464", "[::1]:auto", or nothing.
void set_metrics(PluginOptions& options, const std::string& attempted, std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    std::string_view address = text.substr(0, colon);
    if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
    set_address(options, attempted, address);
    text.remove_prefix(colon + 1);
  } else if (text.empty()) {
    if (!options.metrics_port) options.metrics_port = 0;
    return;
  }
  set_port(options, attempted, text);
}

}  // namespace

const std::array<OptionEntry, kOptions>& option_table() {
  static constexpr std::array<OptionEntry, kOptions> kTable{{
      {"ddp", nullptr,
       "start a data-parallel job: PMIx, torchrun's environment and store, tasks bound near their GPUs"},
      {"ddp-bind", "numa|core|socket|none",
       "with --ddp: bind tasks to a share of the nearest NUMA node's cores (default), to one core, or to a share of "
       "the nearest socket's"},
      {"ddp-gpus", "all|one|none",
       "with --ddp: tasks see all GPUs, ordered so that local rank i is GPU i (default), or their own only; none sets "
       "nothing"},
      {"ddp-backend", "auto|host|cpu|gloo|nccl|ddp|PLUGIN",
       "with --ddp: backend of libddp's process groups (default auto)"},
      {"ddp-as", "NAMES",
       "with --ddp: horovod, mpi4py or horovod,mpi4py: what tasks' Python programs import by these names is libddp's"},
      {"ddp-imitate", "NAMES",
       "with --ddp: mpirun, horovodrun or both: also set the variables from which their ranks learn their numbers"},
      {"ddp-verbose", nullptr, "with --ddp: each task prints what it was given"},
      {"ddp-dump", "FILE",
       "[=FILE]; with --ddp: write all tasks' environment variables, where they came from and what is wrong with them, "
       "to "
       "standard error, or to this file on the first task's node (JSON)",
       true},
      {"ddp-doctor", nullptr,
       "with --ddp: examine all nodes of the step (ddp-info doctor) before the program starts; errors end the step"},
      {"ddp-metrics", "[ADDRESS:]PORT",
       "[=[ADDRESS:]PORT]; with --ddp: each node answers Prometheus at http://127.0.0.1:PORT/metrics, or at another of "
       "its addresses "
       "(0.0.0.0: all); without a value, or with auto, at a free port, which it prints",
       true},
      {"ddp-event-log", "FILE",
       "with --ddp: append the step's events to this file as they happen, one JSON object per line"},
      {"ddp-event-log-interval", "SECONDS",
       "with --ddp: how often --ddp-event-log gets a line on steps, hidden communication and stragglers (default 60)"},
      {"ddp-hang-report-after", "SECONDS",
       "with --ddp: report which rank hangs once no rank has made progress for this long (default 300; 0: never)"},
  }};
  return kTable;
}

std::span<const std::string_view> accepted_words(Option option) {
  switch (option) {
    case Option::bind: return topology::kBindWords;
    case Option::gpus: return topology::kGpuWords;
    case Option::backend: return base::kBackendWords;
    case Option::ddp:
    case Option::as:
    case Option::imitate:
    case Option::verbose:
    case Option::dump:
    case Option::doctor:
    case Option::metrics:
    case Option::event_log:
    case Option::event_log_interval:
    case Option::hang_report_after: return {};
  }
  return {};
}

void set_option(PluginOptions& options, Option option, const char* value) {
  const std::string attempted = std::string("reading --") + option_table().at(static_cast<std::size_t>(option)).name;
  const std::string_view text = value != nullptr ? value : "";
  switch (option) {
    case Option::ddp: options.enabled = true; return;
    case Option::verbose: options.verbose = true; return;
    case Option::doctor: options.doctor = true; return;
    case Option::as:
      options.as = text_of(base::read_words(attempted, text, base::kImportedWords), base::kImportedWords);
      return;
    case Option::imitate: {
      const base::ChosenWords chosen = base::read_words(attempted, text, base::kImitatedWords);
      options.imitates_openmpi = chosen.first;
      options.imitates_horovod = chosen.second;
      return;
    }
    case Option::dump: options.dump = text.empty() ? "stderr" : text; return;
    case Option::metrics: set_metrics(options, attempted, text); return;
    case Option::event_log:
      if (text.empty()) base::throw_invalid_argument(attempted, "'' is not a file", "give the path of a file");
      options.event_log = text;
      return;
    case Option::event_log_interval:
      options.event_log_interval_s = static_cast<std::uint32_t>(parse_whole(attempted, text, kOneDay_s, "seconds"));
      return;
    case Option::hang_report_after:
      options.hang_report_after_s =
          text == "none" || text == "0" ? 0 : parse_whole(attempted, text, kOneDay_s, "seconds, nor none");
      return;
    case Option::bind:
    case Option::gpus:
    case Option::backend: break;
  }
  set_word(options, option, attempted, text);
}

void set_word(PluginOptions& options, Option option, std::string attempted, std::string_view word) {
  if (option == Option::bind) {
    options.bind = topology::read_bind_policy(std::move(attempted), word);
  } else if (option == Option::gpus) {
    options.gpus = topology::read_gpu_visibility(std::move(attempted), word);
  } else if (base::backends_of(word)) {
    options.backend = word;
  } else {
    base::throw_invalid_argument(std::move(attempted), "'" + std::string(word) + "' is not the name of a backend",
                                 std::string("give ") + base::kBackendRule);
  }
}

void check_event_log(const std::string& path) {
  const base::UniqueFd file = base::open_to_append("opening --ddp-event-log=" + path, path);
}

void check_backend(const std::string& word, bool of_command_line) {
  std::vector<std::string> folders{DDP_LIBRARY_INSTALLED};
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&check_backend), &info) != 0 && info.dli_fname != nullptr) {
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(info.dli_fname, nullptr), &std::free);
    const std::string_view path = real != nullptr ? real.get() : "";
    const std::string_view folder = path.substr(0, path.rfind('/'));  // lib/slurm
    if (!folder.empty()) folders.insert(folders.begin(), std::string(folder.substr(0, folder.rfind('/'))));
  }
  if (folders.front() == folders.back()) folders.resize(1);
  base::require_backend_files(
      of_command_line ? "reading --ddp-backend" : "reading the environment variable DDP_BACKEND", word,
      base::Environment::process(), folders);
}

std::optional<std::string> process_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>{value} : std::nullopt;
}

PluginOptions default_options(Lookup lookup) {
  PluginOptions options;
  take_default(lookup, "DDP_BIND", Option::bind, options);
  take_default(lookup, "DDP_GPUS", Option::gpus, options);
  take_default(lookup, "DDP_BACKEND", Option::backend, options);
  if (const auto address = lookup("DDP_METRICS_ADDRESS"); address && !address->empty())
    set_address(options, "reading the environment variable DDP_METRICS_ADDRESS", *address);
  if (const auto port = lookup("DDP_METRICS_PORT"); port && !port->empty())
    set_port(options, "reading the environment variable DDP_METRICS_PORT", *port);
  return options;
}

std::optional<bool> own_switch(Lookup lookup) {
  const auto value = lookup("SLURM_DDP");
  if (!value || value->empty()) return std::nullopt;
  std::string word = *value;
  for (char& letter : word) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  static const std::vector<std::string> kWords{"1", "yes", "true", "on", "0", "no", "false", "off"};
  const auto found = std::find(kWords.begin(), kWords.end(), word);
  if (found == kWords.end()) throw base::unknown_word("reading the environment variable SLURM_DDP", *value, kWords);
  return found - kWords.begin() < 4;
}

bool enabled_by_environment(Lookup lookup) {
  return lookup(kInheritedVariable).has_value() || lookup(kUserVariable).has_value();
}

// ---- from srun to its tasks ----------------

namespace {

constexpr std::string_view kTicketVersion = "6";
constexpr std::size_t kSecretDigits = 64;
constexpr std::string_view kDigits = "0123456789abcdef";

[[noreturn]] void refuse_ticket(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("reading {}", kTicketVariable),
               .cause = std::move(cause),
               .hint = "do the host of srun and this node have the same version of libddp's plugin?"}};
}

}  // namespace

std::string encode(const StepTicket& ticket) {
  std::string text = fmt::format("{};", kTicketVersion);
  for (const std::byte byte : base::encode(ticket)) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

StepTicket parse_ticket(std::string_view text) {
  const auto end = text.find(';');
  if (text.substr(0, end) != kTicketVersion || end == std::string_view::npos)
    refuse_ticket(
        fmt::format("its version is '{}', not {}", text.substr(0, std::min<std::size_t>(end, 16)), kTicketVersion));
  text.remove_prefix(end + 1);
  if (text.size() % 2 != 0) refuse_ticket("it is cut");
  Bytes bytes;
  for (; !text.empty(); text.remove_prefix(2)) {
    const auto high = kDigits.find(text[0]), low = kDigits.find(text[1]);
    if (high == std::string_view::npos || low == std::string_view::npos) refuse_ticket("it has other letters");
    bytes.push_back(static_cast<std::byte>(high << 4U | low));
  }
  try {
    auto ticket = base::decode<StepTicket>(bytes);
    ticket.options.enabled = true;
    set_word(ticket.options, Option::backend, {}, std::string{ticket.options.backend});
    const bool hexadecimal = ticket.secret.find_first_not_of(kDigits) == std::string::npos;
    if (!hexadecimal || ticket.secret.size() != (ticket.port != 0 ? kSecretDigits : 0))
      refuse_ticket("its secret is invalid");
    return ticket;
  } catch (const Error& error) {
    refuse_ticket(error.cause());
  }
}

std::string encode(const BeforeProgram& before) { return fmt::format("{:d}:{}", before.doctor, before.dump); }

BeforeProgram parse_before(std::string_view text) {
  if (!text.starts_with("0:") && !text.starts_with("1:")) return {};
  return {.doctor = text.front() == '1', .dump = std::string(text.substr(2))};
}

}  // namespace ddp::srun_plugin
