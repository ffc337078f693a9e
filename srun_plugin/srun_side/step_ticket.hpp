// What srun passes to the preparation of a step's tasks, in one variable that their programs do not see.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ddp/version.hpp>

#include "srun_side/plugin_options.hpp"

namespace ddp::srun_plugin {

/// `srun --export=NONE` passes variables that begin with SLURM_.
inline constexpr const char* kTicketVariable = "SLURM_DDP_STEP";

struct StepTicket {
  PluginOptions options;   ///< enabled; of those for srun itself (dump, doctor, event log) nothing
  std::uint16_t port = 0;  ///< of the store beside srun; 0: there is none
  std::string secret{};    ///< of the store: 64 hexadecimal digits
  /// For how long nodes wait to hear of each other's networks.
  std::uint16_t patience_seconds = 10;
  bool pmi_available = true;                 ///< this Slurm has PMIx or PMI-2
  std::uint32_t progress_seconds = 0;        ///< how often nodes tell of steps; 0: never
  std::string version = DDP_VERSION_STRING;  ///< of libddp on srun's host

  friend bool operator==(const StepTicket&, const StepTicket&) = default;
};

/// Whether nodes watch their tasks: because the user has asked for what they see, or to tell of hangs, too.
inline bool reports_wanted(const StepTicket& ticket) {
  return ticket.options.metrics_port || ticket.progress_seconds > 0;
}
inline bool watched(const StepTicket& ticket) {
  return reports_wanted(ticket) || ticket.options.hang_report_after_s > 0;
}

/// One word, without spaces.
std::string encode(const StepTicket& ticket);

/// Throws Error(protocol) for what encode() of this version did not write.
StepTicket parse_ticket(std::string_view text);

}  // namespace ddp::srun_plugin
