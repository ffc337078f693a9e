#include "diagnostics/environment/rank_environment.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/slurm_step.hpp"
#include "base/torchrun_environment.hpp"
#include "diagnostics/environment/redaction.hpp"
#include "diagnostics/environment/variable_table.hpp"

namespace ddp::diagnostics {
namespace {

const std::string* value_in(const Variables& variables, std::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : &found->second;
}

class Origins {
 public:
  explicit Origins(const EnvironmentSource& source) : source_(source) {
    if (const std::string* text = value_in(source.now, base::kStepSettingsVariable)) {
      if (auto settings = base::parse_step_settings(*text)) by_srun_ = std::move(settings->variables);
    }
    if (const std::string* text = value_in(source.now, base::kPlacedSettingsVariable)) {
      if (auto settings = base::parse_step_settings(*text)) by_ddprun_ = std::move(settings->variables);
    }
    under_ddprun_ = value_in(source.now, base::kWorkerJobVariable) != nullptr;
  }

  std::string of(std::string_view name, const std::string& value) const {
    if (source_.at_exec) {
      const std::string* before = value_in(*source_.at_exec, name);
      if (before == nullptr) {
        const auto [file, in_file] = base::value_in(source_.files, name);
        return in_file != nullptr && *in_file == value ? file->path : "set after the start";
      }
      if (*before != value) return fmt::format("changed after the start, from '{}'", shown_value(name, *before));
    }
    if (listed(by_ddprun_, name, value)) return "ddprun's placement";
    if (listed(by_srun_, name, value)) return "srun --ddp";
    if (under_ddprun_ && (base::is_torchrun_identity(name) || name.starts_with("DDPRUN_"))) return "ddprun";
    if (name.starts_with("SLURM") || name.starts_with("SRUN_")) return "Slurm";
    if (name.starts_with("PMIX_") && !name.starts_with("PMIX_MCA_")) return under_ddprun_ ? "ddprun" : "PMIx's server";
    if (name.starts_with("PMI_")) return "PMI's server";
    if (name.starts_with("OMPI_COMM_WORLD_")) return "mpirun";
    if (name.starts_with("TORCHELASTIC_")) return "torchrun";
    return "environment";
  }

 private:
  static bool listed(const std::vector<base::StepVariable>& variables, std::string_view name,
                     const std::string& value) {
    return std::any_of(variables.begin(), variables.end(), [&](const base::StepVariable& each) {
      return each.name == name && each.digest == base::value_digest(value);
    });
  }

  const EnvironmentSource& source_;
  std::vector<base::StepVariable> by_srun_;
  std::vector<base::StepVariable> by_ddprun_;
  bool under_ddprun_ = false;
};

/// Slurm and PMIx set dozens, most of which say nothing to a reader.
bool matters(std::string_view name) {
  const auto family = family_of(name);
  return family && ((*family != Family::slurm && *family != Family::pmix) || find_variable(name) != nullptr);
}

/// What the environment's value keeps from NCCL; empty: nothing.
std::string over_files(const EnvironmentSource& source, std::string_view name, const std::string& value) {
  const auto [file, in_file] = base::value_in(source.files, name);
  if (in_file == nullptr || *in_file == value) return {};
  return fmt::format(", over '{}' in {}", shown_value(name, *in_file), shown_value("", file->path));
}

bool of_nccl(std::string_view name) { return family_of(name) == Family::nccl && !name.starts_with("RCCL_"); }

}  // namespace

RankEnvironment describe(const EnvironmentSource& source, int rank, const std::string& host, bool all) {
  RankEnvironment result{.rank = rank,
                         .host = host,
                         .nccl = {.path = shown_value("", source.nccl.path),
                                  .found = shown_value("", source.nccl.found),
                                  .version = source.nccl.version,
                                  .names = static_cast<int>(source.nccl.names.size()),
                                  .problem = source.nccl.problem}};
  const Origins origins{source};
  Variables values = source.now;
  Variables from_file;
  for (const base::NcclConf& file : source.files) {
    result.files.push_back({.path = shown_value("", file.path), .digest = file.digest});
    for (const auto& [name, value] : file.settings) {
      if (values.emplace(name, value).second) from_file.emplace(name, file.path);
    }
  }
  for (const auto& [name, value] : values) {
    if (!all && !matters(name)) continue;
    const auto file = from_file.find(name);
    RankVariable variable{.name = shown_value("", name),
                          .value = shown_value(name, value),
                          .origin = file == from_file.end() ? origins.of(name, value) + over_files(source, name, value)
                                                            : shown_value("", file->second)};
    if (of_nccl(name) && source.nccl.scanned() && owner_of(name).empty()) variable.read = source.nccl.reads(name);
    result.variables.push_back(std::move(variable));
  }
  result.findings = judge(values, source.nccl);
  return result;
}

}  // namespace ddp::diagnostics
