#include "env/known_variables.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/env_table.hpp"
#include "base/library_search.hpp"
#include "diagnostics/environment/redaction.hpp"
#include "diagnostics/environment/variable_table.hpp"

namespace ddp::tools::env {
namespace {

using diagnostics::Family;
using diagnostics::Standing;
using diagnostics::Variable;

constexpr std::array kFamilies{Family::launcher, Family::pytorch, Family::nccl,      Family::cuda,
                               Family::gloo,     Family::ucx,     Family::libfabric, Family::verbs,
                               Family::mpi,      Family::slurm,   Family::pmix,      Family::openmp};

// Six of them are long dead, and stay for comparison.
constexpr const char* kTorchNames =
    "RANK LOCAL_RANK WORLD_SIZE MASTER_PORT MASTER_ADDR CUDA_VISIBLE_DEVICES GLOO_SOCKET_IFNAME "
    "GLOO_DEVICE_TRANSPORT NCCL_SOCKET_IFNAME TORCH_NCCL_BLOCKING_WAIT NCCL_DEBUG NCCL_DEBUG_SUBSYS "
    "NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_SOCKET_NTHREADS "
    "NCCL_NSOCKS_PERTHREAD NCCL_BUFFSIZE NCCL_NTHREADS NCCL_RINGS NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS "
    "NCCL_CHECKS_DISABLE NCCL_CHECK_POINTERS NCCL_LAUNCH_MODE NCCL_IB_HCA NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT "
    "NCCL_IB_GID_INDEX NCCL_IB_SL NCCL_IB_TC NCCL_IB_AR_THRESHOLD NCCL_IB_CUDA_SUPPORT NCCL_NET_GDR_LEVEL "
    "NCCL_NET_GDR_READ NCCL_SINGLE_RING_THRESHOLD NCCL_LL_THRESHOLD NCCL_TREE_THRESHOLD NCCL_ALGO NCCL_PROTO "
    "NCCL_IGNORE_CPU_AFFINITY NCCL_DEBUG_FILE NCCL_COLLNET_ENABLE NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE "
    "TORCH_NCCL_ASYNC_ERROR_HANDLING";

std::string values_of(const Variable& row) {
  if (row.rule == diagnostics::Rule::one_only) return "only 1 has an effect";
  if (row.values.empty()) return row.rule == diagnostics::Rule::integer ? "number" : "";
  std::string values(row.values);
  for (auto bar = values.find('|'); bar != std::string::npos; bar = values.find('|', bar + 2))
    values.replace(bar, 1, ", ");
  return values;
}

/// "**auto**, host", "seconds; 600": the default is bold, or behind the semicolon.
std::string values_of(const base::EnvVariable& row) {
  const std::string fallback = row.default_value.empty() ? "" : fmt::format("; {}", row.default_value);
  if (row.type == base::EnvType::boolean) return "boolean" + fallback;
  if (row.type == base::EnvType::seconds) return "seconds" + fallback;
  if (row.type == base::EnvType::text) {
    const bool has_default = row.choices.find("**") != std::string_view::npos;
    return std::string(row.choices) + (has_default ? "" : fallback);
  }
  std::string text;
  for (std::string_view rest = row.choices; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const std::string_view bold = word == row.default_value ? "**" : "";
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", bold, word, bold);
  }
  return text;
}

/// Markdown as a terminal shows it: links are their texts, without backquotes and stars.
std::string plain(std::string_view markdown) {
  std::string text;
  for (std::size_t at = 0; at < markdown.size(); ++at) {
    const char letter = markdown[at];
    if (letter == ']' && markdown.substr(at).starts_with("]("))
      at = std::min(markdown.find(')', at), markdown.size());
    else if (letter != '[' && letter != '`' && letter != '*')
      text += letter;
  }
  return text;
}

/// "deprecated since 2.20.3, to 2.20.5: use X"
std::string standing_of(const Variable& row) {
  std::string text;
  switch (row.standing) {
    case Standing::current: break;
    case Standing::undocumented: text = "undocumented"; break;
    case Standing::deprecated: text = "deprecated"; break;
    case Standing::removed: text = "removed"; break;
    case Standing::unread: text = "no library reads it"; break;
    case Standing::others: text = fmt::format("of {}", diagnostics::owner_of(row.name)); break;
  }
  if (!row.since.empty()) text += fmt::format("{}since {}", text.empty() ? "" : ", ", row.since);
  if (!row.until.empty()) text += fmt::format("{}to {}", text.empty() ? "" : ", ", row.until);
  if (!row.replacement.empty()) text += fmt::format("{}: {}", text.empty() ? "instead" : ", instead", row.replacement);
  return text;
}

}  // namespace

std::string known_variables_page() {
  std::string page =
      "# Known environment variables\n"
      "\n"
      "By these `ddp-info env` judges; `ddp-info env --known` writes them. libddp's own are in [environment "
      "variables](environment.md). \"equal\": all ranks need the same value.\n";
  for (const Family family : kFamilies) {
    page += fmt::format("\n## {}\n\n| Variable | Values; default | Standing | Meaning |\n| --- | --- | --- | --- |\n",
                        diagnostics::to_string(family));
    for (const Variable& row : diagnostics::variable_table()) {
      if (row.family != family) continue;
      const std::string values = values_of(row);
      page += fmt::format("| `{}` | {}{}{} | {}{}{} | {} |\n", row.name, values,
                          values.empty() || row.default_value.empty() ? "" : "; ", row.default_value, standing_of(row),
                          row.equal_on_all_ranks && !standing_of(row).empty() ? "; " : "",
                          row.equal_on_all_ranks ? "equal" : "", row.meaning);
    }
  }
  return page;
}

std::string own_variables_list() {
  std::string list;
  for (const base::EnvVariable& row : base::env_table()) {
    list += fmt::format("- `{}` ({}): {}\n", row.name, values_of(row), row.help);
  }
  return list;
}

std::string explain_variable(std::string_view name) {
  if (const Variable* row = diagnostics::find_variable(name)) {
    std::string text = fmt::format("{}: {}\n", row->name, row->meaning);
    if (const std::string values = values_of(*row); !values.empty()) text += fmt::format("  values: {}\n", values);
    if (!row->default_value.empty()) text += fmt::format("  default: {}\n", row->default_value);
    if (const std::string standing = standing_of(*row); !standing.empty()) text += fmt::format("  {}\n", standing);
    if (row->equal_on_all_ranks) text += "  all ranks need the same value\n";
    return text;
  }
  for (const base::EnvVariable& row : base::env_table()) {
    if (row.name == name)
      return fmt::format("{}: {}\n  values: {}\n", row.name, plain(row.help), plain(values_of(row)));
  }
  return {};
}

std::string names_not_in_table(const diagnostics::NcclFile& nccl) {
  std::string text;
  for (const std::string& name : nccl.names) {
    if (diagnostics::find_variable(name) == nullptr) text += name + '\n';
  }
  return text;
}

std::string torch_list(const std::map<std::string, std::string, std::less<>>& variables) {
  std::string text;
  for (const std::string& name : base::words_of(kTorchNames, " ")) {
    const auto found = variables.find(name);
    text += fmt::format("env:{}={}\n", name,
                        found == variables.end() ? "N/A" : diagnostics::shown_value(name, found->second));
  }
  return text + '\n';
}

}  // namespace ddp::tools::env
