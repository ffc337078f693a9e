// The options that srun, sbatch and salloc get: --ddp and what changes it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ddp/version.hpp>

#include "base/imitated_launchers.hpp"
#include "base/message_fields.hpp"
#include "topology/placement/option_words.hpp"

namespace ddp::srun_plugin {

/// An option as Slurm registers it.
struct OptionEntry {
  const char* name;     ///< without dashes
  const char* arginfo;  ///< of the value in `srun --help`; null: it takes none
  const char* usage;
  bool value_optional = false;  ///< "--name=VALUE", or "--name" alone
};

enum class Option {
  ddp,
  bind,
  gpus,
  backend,
  as,
  imitate,
  verbose,
  dump,
  doctor,
  metrics,
  event_log,
  event_log_interval,
  hang_report_after
};
inline constexpr std::size_t kOptions = 13;

/// By Option.
const std::array<OptionEntry, kOptions>& option_table();

/// What was asked for.
struct PluginOptions {
  bool enabled = false;
  BindPolicy bind = BindPolicy::numa;
  topology::GpuVisibility gpus = topology::GpuVisibility::all;
  std::string backend = "auto";  ///< an accepted word
  std::string as = {};           ///< DDP_AS of tasks, as base::text_of() writes it; empty: the user's stays
  bool imitates_openmpi = false;
  bool imitates_horovod = false;
  bool verbose = false;
  std::string dump = {};  ///< where tasks write their environments: a file, or "stderr"; empty: nowhere
  bool doctor = false;    ///< tasks are examined before their programs start
  std::optional<std::uint16_t> metrics_port = std::nullopt;  ///< at which nodes answer Prometheus; 0: any
  std::string metrics_address = "127.0.0.1";                 ///< numeric
  std::string event_log = {};                                ///< file; empty: none
  std::uint32_t event_log_interval_s = 60;                   ///< between two lines on steps

  std::uint32_t hang_report_after_s = 300;  ///< for how long no rank must get on; 0: never told

  friend bool operator==(const PluginOptions&, const PluginOptions&) = default;
};

/// The words that @p option accepts, beside names of plugins for --ddp-backend; empty for options without a value, or
/// with any.
std::span<const std::string_view> accepted_words(Option option);

/// Enters one option of the command line. Throws Error(invalid_argument) that lists the accepted words, and suggests
/// the closest.
void set_option(PluginOptions& options, Option option, const char* value);

/// Enters a word of an option that takes one. @param attempted of the error. Throws as set_option().
void set_word(PluginOptions& options, Option option, std::string attempted, std::string_view word);

/// By which users may give --ddp to srun, as any plugin's option.
inline constexpr const char* kUserVariable = "SLURM_SPANK__SLURM_SPANK_OPTION_ddp_ddp";

/// Looks up a variable; nothing: it is unset.
using Lookup = std::optional<std::string> (*)(const char* name);

/// In the environment of this process.
std::optional<std::string> process_variable(const char* name);

/// Opens the file of --ddp-event-log as whoever will write to it does. Throws Error(system).
void check_event_log(const std::string& path);

/// Looks for the plugins that --ddp-backend, or DDP_BACKEND where the command line has no --ddp-backend, names, as
/// ranks will, but on this host. Throws Error(unavailable).
void check_backend(const std::string& word, bool of_command_line);

/// The defaults of a user who has set DDP_BIND, DDP_GPUS, DDP_BACKEND or DDP_METRICS_*. Throws as set_option(), naming
/// the variable.
PluginOptions default_options(Lookup lookup);

/// SLURM_DDP: whether it switches --ddp on (1, yes, true, on) or off (0, no, false, off); nothing where it is unset or
/// empty. Throws Error(invalid_argument) for another word.
std::optional<bool> own_switch(Lookup lookup);

/// Whether an option of the sbatch or salloc around srun, or of the user in Slurm's own form, requests --ddp.
bool enabled_by_environment(Lookup lookup);

// ---- from srun to its tasks ----------------

constexpr auto description(const PluginOptions*) {
  using O = PluginOptions;
  base::Heading heading{"options of srun --ddp"};
  heading.unsent = 5;  // enabled, and those for srun itself
  return base::describe(heading, base::fields<&O::bind>(base::kUpTo<BindPolicy::none>),
                        base::fields<&O::gpus>(base::kUpTo<topology::GpuVisibility::none>),
                        base::fields<&O::backend, &O::as>(base::kPlainName),
                        base::fields<&O::imitates_openmpi, &O::imitates_horovod, &O::verbose>(),
                        base::fields<&O::metrics_port>(), base::fields<&O::metrics_address>(base::kPlainName),
                        base::fields<&O::hang_report_after_s>());
}

/// In one variable, which the tasks' programs do not see. `srun --export=NONE` passes those that begin with SLURM_.
inline constexpr const char* kTicketVariable = "SLURM_DDP_STEP";

struct StepTicket {
  PluginOptions options{};
  std::uint16_t port = 0;  ///< of ddp-step beside srun; 0: there is none
  std::string secret{};    ///< of the step: 64 hexadecimal digits
  /// For how long nodes wait to hear of each other's networks.
  std::uint16_t patience_seconds = 10;
  bool pmi_available = true;                 ///< this Slurm has PMIx or PMI-2
  std::uint32_t progress_seconds = 0;        ///< how often nodes tell of steps; 0: never
  std::string version = DDP_VERSION_STRING;  ///< of libddp on srun's host

  friend bool operator==(const StepTicket&, const StepTicket&) = default;
};
constexpr auto description(const StepTicket*) {
  using T = StepTicket;
  return base::describe({"ticket of a step"}, base::fields<&T::options>(), base::fields<&T::port>(),
                        base::fields<&T::secret>(base::kPlainName), base::fields<&T::patience_seconds>(),
                        base::fields<&T::pmi_available>(), base::fields<&T::progress_seconds>(),
                        base::fields<&T::version>(base::kPlainName));
}

/// Whether the user has asked for what nodes see of their tasks.
inline bool reports_wanted(const StepTicket& ticket) {
  return ticket.options.metrics_port || ticket.progress_seconds > 0;
}

/// One word, without spaces.
std::string encode(const StepTicket& ticket);
/// Throws Error(protocol) for what encode() of this version did not write.
StepTicket parse_ticket(std::string_view text);

/// What happens in each task before its program starts, where srun was asked for it: the environments of all tasks are
/// dumped, and the nodes examined.
struct BeforeProgram {
  bool doctor = false;
  std::string dump = {};  ///< file, or "stderr"; empty: none

  bool wanted() const { return doctor || !dump.empty(); }
  friend bool operator==(const BeforeProgram&, const BeforeProgram&) = default;
};

/// Likewise. Not part of the ticket, for a file's name may be long.
inline constexpr const char* kBeforeVariable = "SLURM_DDP_BEFORE";
std::string encode(const BeforeProgram& before);
/// Nothing is wanted where encode() has not written it.
BeforeProgram parse_before(std::string_view text);

}  // namespace ddp::srun_plugin
