#include "topo/explain.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "topo/wording.hpp"
#include "topology/placement/settings.hpp"

namespace ddp::tools {
namespace {

std::string decision_text(const Decision& decision) {
  std::string text = fmt::format("{}: {}\n", plain_ascii(decision.subject), plain_ascii(decision.chosen));
  if (!decision.reason.empty()) text += fmt::format("  {}\n", plain_ascii(decision.reason));
  for (const std::string& alternative : decision.alternatives)
    text += fmt::format("  not {}\n", plain_ascii(alternative));
  return text;
}

std::string setting_text(const SettingRow& setting, bool in_job) {
  std::string text = fmt::format("  {}\n", plain_ascii(topology::assignment(setting.name, setting.value)));
  if (!setting.reason.empty()) text += fmt::format("    {}\n", plain_ascii(setting.reason));
  if (in_job && !setting.actual) {
    text += "    but this rank does not have it\n";
  } else if (in_job && setting.actual != setting.value) {
    text += fmt::format("    but this rank has '{}'\n", plain_ascii(*setting.actual));
  }
  if (!setting.conflict.empty()) text += fmt::format("    warning: {}\n", plain_ascii(setting.conflict));
  return text;
}

}  // namespace

std::string format_explanation(const Report& report, int rank) {
  const auto [kind, row] = find_rank(report, rank);
  const auto identity = std::find_if(row->ranks.begin(), row->ranks.end(),
                                     [rank](const RankIdentity& known) { return known.rank == rank; });
  std::string text = fmt::format("rank {}, local rank {} of {}", rank, row->local_rank, kind->rows.size());
  text += identity->host.empty() ? fmt::format(", {}\n", plain_ascii(kind->topology.source()))
                                 : fmt::format(", host {}\n", plain_ascii(identity->host));
  text += fmt::format("(--bind {}, --gpus {})\n", to_string(report.policy), to_string(report.gpus));

  for (const Decision& decision : row->placement.decisions) text += fmt::format("\n{}", decision_text(decision));
  if (row->actual) {
    text += fmt::format("\nbinding: {}\n  has {}, should have {}\n", row->actual->sentence,
                        row->actual->binding.cpus.to_string(), row->placement.cpus.to_string());
    if (row->actual->given != row->actual->binding.cpus) {
      text += fmt::format("  started with {}\n", row->actual->given.to_string());
    }
  }
  if (report.job) {
    text += fmt::format("\ninterface for sockets: {} ({})\n  {}\n", plain_ascii(identity->interface.name),
                        plain_ascii(identity->interface.address), plain_ascii(identity->interface.reason));
  } else {
    text += "\ninterface for sockets: chosen when the ranks of a job meet\n";
  }
  if (!row->settings.empty()) text += "\nsettings:\n";
  for (const SettingRow& setting : row->settings) text += setting_text(setting, report.job.has_value());
  return text;
}

}  // namespace ddp::tools
