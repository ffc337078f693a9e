#include "topo/text_report.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "topo/wording.hpp"
#include "topology/placement/settings.hpp"

namespace ddp::tools {

std::string TextGrid::to_string(std::size_t indent) const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line(indent, ' ');
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += plain_ascii(row[i]);
      line.append(widths[i] - row[i].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

// The two matrices at the end of the table.

namespace {

constexpr std::array<std::pair<Path, std::string_view>, 8> kMeanings = {{
    {Path::self, "the device itself"},
    {Path::nvlink, "NVLink or XGMI, also through switches"},
    {Path::pix, "at most one PCIe switch"},
    {Path::pxb, "several PCIe switches, but no host bridge"},
    {Path::phb, "a PCIe host bridge"},
    {Path::node, "host bridges of one NUMA node"},
    {Path::sys, "the connection between NUMA nodes"},
    {Path::unknown, "the place of one of them is not known"},
}};

std::vector<Nic> usable_nics(const Topology& topology) {
  std::vector<Nic> usable;
  for (const Nic& nic : topology.nics()) {
    if (nic.usable) usable.push_back(nic);
  }
  return usable;
}

/// One row per GPU, with its path to each of @p columns. Records which words occur.
template <class Device, class Name>
std::string matrix(const Topology& topology, const std::vector<Device>& columns, std::string corner, Name name,
                   std::set<std::string>& seen) {
  TextGrid grid;
  std::vector<std::string> head{std::move(corner)};
  for (const Device& column : columns) head.push_back(name(column));
  grid.add_row(std::move(head));
  for (const Gpu& gpu : topology.gpus()) {
    std::vector<std::string> cells{fmt::format("GPU{}", gpu.index)};
    for (const Device& column : columns) {
      cells.emplace_back(to_string(topology.distance(gpu, column).path));
      seen.insert(cells.back());
    }
    grid.add_row(std::move(cells));
  }
  return grid.to_string(2);
}

}  // namespace

std::string format_matrices(const Topology& topology) {
  if (topology.gpus().empty()) return {};
  std::set<std::string> seen;
  std::string text;
  if (const auto nics = usable_nics(topology); !nics.empty()) {
    text += "GPUs and NICs:\n";
    text += matrix(
                topology, nics, "", [](const Nic& nic) { return nic.name(); }, seen) +
            "\n";
  }
  if (topology.gpus().size() > 1) {
    text += "GPUs:\n";
    text += matrix(
        topology, topology.gpus(), "", [](const Gpu& gpu) { return fmt::format("GPU{}", gpu.index); }, seen);
    text += "\n";
  }
  if (text.empty()) return {};
  return text + format_path_legend(seen);
}

std::string format_path_legend(const std::set<std::string>& words) {
  TextGrid legend;
  for (const auto& [path, meaning] : kMeanings) {
    const std::string word{to_string(path)};
    if (words.contains(word)) legend.add_row({word, std::string(meaning)});
  }
  return legend.empty() ? std::string() : legend.to_string(2);
}

namespace {

std::vector<int> ranks_of(const RankRow& row) {
  std::vector<int> ranks;
  for (const RankIdentity& identity : row.ranks) ranks.push_back(identity.rank);
  return ranks;
}

std::string rank_words(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", number_list(ranks));
}

std::string title_line(const Report& report) {
  const std::string asked = fmt::format("--bind {}, --gpus {}", to_string(report.policy), to_string(report.gpus));
  if (report.job) {
    return fmt::format("job of {} on {}, started by {}: what each has, beside what it should have ({})\n",
                       counted(static_cast<std::size_t>(report.job->world_size), "rank"),
                       counted(
                           [&] {
                             std::size_t nodes = 0;
                             for (const NodeKind& kind : report.kinds) nodes += kind.hosts.size();
                             return nodes;
                           }(),
                           "node"),
                       report.job->launcher, asked);
  }
  const NodeKind& kind = report.kinds.front();
  return fmt::format("what {} on {} would get ({})\n", counted(kind.rows.size(), "rank"),
                     plain_ascii(kind.topology.source()), asked);
}

std::string header(const Report& report, const NodeKind& kind) {
  const Topology& topology = kind.topology;
  std::string text;
  if (report.job) {
    text +=
        fmt::format("{} {} ({}, {}): ", kind.hosts.size() == 1 ? "node" : "nodes", plain_ascii(host_list(kind.hosts)),
                    counted(kind.hosts.size(), "node"), rank_words(kind.ranks()));
  } else if (!kind.hosts.empty()) {
    text += fmt::format("node {}: ", plain_ascii(kind.hosts.front()));
  }
  text += machine_summary(topology) + "\n";
  const std::string gpus = gpu_summary(topology);
  const std::string nics = nic_summary(topology);
  text += fmt::format("  GPUs: {}\n", gpus.empty() ? "none" : plain_ascii(gpus));
  text += fmt::format("  NICs: {}\n", nics.empty() ? "none" : plain_ascii(nics));
  if (kind.allowed != topology.cpus()) {
    text += fmt::format("  allowed: {} of {} PUs: {}\n", kind.allowed.count(), topology.cpus().count(),
                        kind.allowed.to_string());
  }
  return text;
}

std::string gpu_cell(const Topology& topology, const Placement& placement) {
  if (!placement.gpu) return "-";
  const Gpu& gpu = topology.gpus().at(static_cast<std::size_t>(*placement.gpu));
  return fmt::format("{} {} {}{}", gpu.index, gpu.pci.to_string(), short_model(gpu.model),
                     placement.gpu_shared ? " (shared)" : "");
}

std::string nic_cell(const Topology& topology, const Placement& placement) {
  if (placement.nics.empty()) return "-";
  const Nic& nic = topology.nics().at(static_cast<std::size_t>(placement.nics.front()));
  return nic.rate_gbps > 0 ? fmt::format("{} {:.4g}G", nic.name(), nic.rate_gbps) : nic.name();
}

std::string threads_cell(const RankRow& row) {
  for (const SettingRow& setting : row.settings) {
    if (setting.name == "OMP_NUM_THREADS") return setting.actual.value_or(setting.value);
  }
  return "-";
}

std::string rank_table(const Report& report, const NodeKind& kind) {
  TextGrid grid;
  std::vector<std::string> head{"RANK", "LOCAL", "GPU", "NIC", "PATH", "NUMA", "CORES", "CPUS", "OMP"};
  if (report.job) head.emplace_back("BINDING");
  grid.add_row(std::move(head));
  for (const RankRow& row : kind.rows) {
    const Placement& placement = row.placement;
    std::vector<std::string> cells{number_list(ranks_of(row)),
                                   fmt::to_string(row.local_rank),
                                   gpu_cell(kind.topology, placement),
                                   nic_cell(kind.topology, placement),
                                   path_word(kind.topology, placement),
                                   numa_list(kind.topology, placement.numa_nodes),
                                   fmt::format("{}{}", placement.num_cores, placement.cores_shared ? " (shared)" : ""),
                                   placement.cpus.to_string(),
                                   threads_cell(row)};
    if (report.job) cells.push_back(row.actual ? row.actual->sentence : "-");
    grid.add_row(std::move(cells));
  }
  return grid.to_string();
}

/// Remarks about a setting besides its value.
std::string setting_note(const Report& report, const SettingRow& setting) {
  if (setting.by_user && !setting.actual) return fmt::format("(kept: {})", setting.reason);
  if (report.job && !setting.actual) return "(not set)";
  if (report.job && setting.actual != setting.value) return fmt::format("(has '{}')", *setting.actual);
  return setting.value.starts_with('=') ? "(= asks NCCL for exactly these names)" : "";
}

/// Explains the words in column PATH.
std::string path_legend(const NodeKind& kind) {
  std::set<std::string> words;
  for (const RankRow& row : kind.rows) words.insert(path_word(kind.topology, row.placement));
  const std::string legend = format_path_legend(words);
  return legend.empty() ? legend : "\nPATH, from the rank's NUMA node to its NIC:\n" + legend;
}

std::string settings_text(const Report& report, const NodeKind& kind) {
  using Shown = std::pair<std::string, std::string>;  // "NAME=value" and the note
  std::map<std::string, std::vector<std::pair<Shown, std::vector<int>>>> by_name;
  for (const RankRow& row : kind.rows) {
    for (const SettingRow& setting : row.settings) {
      auto& values = by_name[setting.name];
      const Shown shown{topology::assignment(setting.name, setting.value), setting_note(report, setting)};
      auto known = std::find_if(values.begin(), values.end(), [&](const auto& entry) { return entry.first == shown; });
      if (known == values.end()) known = values.insert(values.end(), {shown, {}});
      const auto ranks = ranks_of(row);
      known->second.insert(known->second.end(), ranks.begin(), ranks.end());
    }
  }
  const std::size_t num_ranks = kind.ranks().size();
  TextGrid common;
  TextGrid differing;
  for (const auto& [name, values] : by_name) {
    for (const auto& [shown, ranks] : values) {
      if (ranks.size() == num_ranks) {
        common.add_row({shown.first, shown.second});
      } else {
        differing.add_row({rank_words(ranks), shown.first, shown.second});
      }
    }
  }
  std::string text;
  if (!common.empty()) text += "\nsettings of every rank:\n" + common.to_string(2);
  if (!differing.empty()) text += "\nsettings that differ:\n" + differing.to_string(2);
  return text;
}

/// Conflicts, each with all its ranks.
std::string warnings_text(const NodeKind& kind) {
  std::vector<std::pair<std::string, std::vector<int>>> warnings;
  const auto add = [&warnings](const std::string& text, const RankRow& row) {
    auto known = std::find_if(warnings.begin(), warnings.end(), [&](const auto& entry) { return entry.first == text; });
    if (known == warnings.end()) known = warnings.insert(warnings.end(), {text, {}});
    const auto ranks = ranks_of(row);
    known->second.insert(known->second.end(), ranks.begin(), ranks.end());
  };
  for (const RankRow& row : kind.rows) {
    for (const SettingRow& setting : row.settings) {
      if (setting.conflict.empty()) continue;
      add(fmt::format("{}: {}", topology::assignment(setting.name, setting.actual.value_or(setting.value)),
                      setting.conflict),
          row);
    }
    if (row.actual && row.actual->state != BindingState::as_placed) {
      add(row.actual->state == BindingState::not_bound ? "not bound to the cores that the table shows"
                                                       : "bound to other cores than the table shows",
          row);
    }
  }
  std::string text;
  for (const auto& [warning, ranks] : warnings) {
    text += fmt::format("warning: {}: {}\n", rank_words(ranks), plain_ascii(warning));
  }
  return text.empty() ? text : "\n" + text;
}

std::string left_over_text(const NodeKind& kind) {
  const Topology& topology = kind.topology;
  TextGrid unused;
  for (const int index : kind.unused_gpus()) {
    const Gpu& gpu = topology.gpus().at(static_cast<std::size_t>(index));
    unused.add_row({gpu_name(gpu), short_model(gpu.model)});
  }
  TextGrid hidden;
  for (const Gpu& gpu : topology.gpus()) {
    if (!gpu.visible) hidden.add_row({gpu_name(gpu), gpu.hidden_reason});
  }
  TextGrid unusable;
  for (const Nic& nic : topology.nics()) {
    if (!nic.usable) unusable.add_row({nic.name(), nic.unusable_reason});
  }
  std::string text;
  if (!unused.empty()) text += "\nGPUs that no rank uses:\n" + unused.to_string(2);
  if (!hidden.empty()) text += "\nGPUs that may not be used:\n" + hidden.to_string(2);
  if (!unusable.empty()) text += "\nNICs that cannot be used:\n" + unusable.to_string(2);
  return text;
}

}  // namespace

std::string format_table(const Report& report) {
  std::string text = title_line(report);
  std::map<std::string, std::string> shown_shapes;  // each with the hosts whose matrices were printed
  for (const NodeKind& kind : report.kinds) {
    text += "\n" + header(report, kind) + "\n" + rank_table(report, kind);
    text += settings_text(report, kind) + warnings_text(kind) + left_over_text(kind);
    const auto [earlier, first] =
        shown_shapes.emplace(kind.topology.shape(), kind.hosts.empty() ? "" : plain_ascii(host_list(kind.hosts)));
    const std::string matrices = format_matrices(kind.topology);
    if (matrices.empty()) {
      text += path_legend(kind);  // other machines have it below their matrices
      continue;
    }
    text += first ? "\n" + matrices : fmt::format("\ndistances: as for {}\n", earlier->second);
  }
  return text;
}

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
    text += "\ninterface for sockets: chosen when the ranks of a job rendezvous\n";
  }
  if (!row->settings.empty()) text += "\nsettings:\n";
  for (const SettingRow& setting : row->settings) text += setting_text(setting, report.job.has_value());
  return text;
}

}  // namespace ddp::tools
