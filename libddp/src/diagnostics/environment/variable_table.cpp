#include "diagnostics/environment/variable_table.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <vector>

#include "base/closest_word.hpp"

namespace ddp::diagnostics {

/// The text of known_variables.tsv; of the build (libddp/CMakeLists.txt).
extern const char* const kKnownVariables;

namespace {

// In the order of their enumerators.
constexpr std::array<std::string_view, 6> kStandings{"current", "undocumented", "deprecated",
                                                     "removed", "unread",       "others"};
constexpr std::array<std::string_view, 9> kRules{"text",  "integer", "one_only", "choice", "choice_any_case",
                                                 "words", "tuning",  "level",    "file"};

/// What stands before the separator, which is taken away with it.
std::string_view take(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(text.size(), part.size() + 1));
  return part;
}

template <class Enum, class Words>
Enum take_word(std::string_view& line, const Words& words) {
  const std::string_view word = take(line, '\t');
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end()) throw std::logic_error("known_variables.tsv: '" + std::string(word) + "' is unknown");
  return static_cast<Enum>(found - words.begin());
}

const std::vector<Variable>& all_rows() {
  static const auto* const kRows = [] {
    std::vector<std::string_view> families;
    for (int each = 0; each <= static_cast<int>(Family::libddp); ++each)
      families.push_back(to_string(static_cast<Family>(each)));
    auto* rows = new std::vector<Variable>;
    for (std::string_view text = kKnownVariables; !text.empty();) {
      std::string_view line = take(text, '\n');
      if (line.starts_with('#')) continue;
      Variable row{};
      row.name = take(line, '\t');
      row.family = take_word<Family>(line, families);
      row.standing = take_word<Standing>(line, kStandings);
      row.since = take(line, '\t');
      row.until = take(line, '\t');
      row.rule = take_word<Rule>(line, kRules);
      row.values = take(line, '\t');
      row.equal_on_all_ranks = take(line, '\t') == "equal";
      row.default_value = take(line, '\t');
      row.replacement = take(line, '\t');
      row.meaning = line;
      rows->push_back(row);
    }
    return rows;
  }();
  return *kRows;
}

struct FamilyPrefix {
  std::string_view prefix;
  Family family;
};

constexpr std::array kPrefixes{
    FamilyPrefix{"DDP", Family::libddp},
    FamilyPrefix{"NCCL_", Family::nccl},
    FamilyPrefix{"RCCL_", Family::nccl},
    FamilyPrefix{"TORCHELASTIC_", Family::launcher},
    FamilyPrefix{"PET_", Family::launcher},
    FamilyPrefix{"TORCH_", Family::pytorch},
    FamilyPrefix{"PYTORCH_", Family::pytorch},
    FamilyPrefix{"CUDA_", Family::cuda},
    FamilyPrefix{"NVIDIA_", Family::cuda},
    FamilyPrefix{"GPU_DEVICE_ORDINAL", Family::cuda},
    FamilyPrefix{"HIP_VISIBLE_DEVICES", Family::cuda},
    FamilyPrefix{"ROCR_VISIBLE_DEVICES", Family::cuda},
    FamilyPrefix{"ZE_AFFINITY_MASK", Family::cuda},
    FamilyPrefix{"GLOO_", Family::gloo},
    FamilyPrefix{"UCX_", Family::ucx},
    FamilyPrefix{"UCC_", Family::ucx},
    FamilyPrefix{"FI_", Family::libfabric},
    FamilyPrefix{"OFI_NCCL_", Family::libfabric},
    FamilyPrefix{"IBV_", Family::verbs},
    FamilyPrefix{"RDMAV_", Family::verbs},
    FamilyPrefix{"MLX5_", Family::verbs},
    FamilyPrefix{"OMPI_", Family::mpi},
    FamilyPrefix{"MPICH_", Family::mpi},
    FamilyPrefix{"I_MPI_", Family::mpi},
    FamilyPrefix{"MV2_", Family::mpi},
    FamilyPrefix{"PRTE_", Family::mpi},
    FamilyPrefix{"SLURM", Family::slurm},
    FamilyPrefix{"SRUN_", Family::slurm},
    FamilyPrefix{"PMIX_", Family::pmix},
    FamilyPrefix{"PMI_", Family::pmix},
    FamilyPrefix{"OMP_", Family::openmp},
    FamilyPrefix{"GOMP_", Family::openmp},
    FamilyPrefix{"KMP_", Family::openmp},
    FamilyPrefix{"MKL_", Family::openmp},
};

struct Owner {
  std::string_view prefix;
  std::string_view name;
};

constexpr std::array kOwners{
    Owner{"NCCL_TESTS_", "nccl-tests"},
    Owner{"NCCL_INSPECTOR_", "NCCL's inspector plugin"},
    Owner{"NCCL_PROFILE_", "a profiler plugin"},
    Owner{"NCCL_TUNER_CONFIG_", "a tuner plugin"},
    Owner{"NCCL_FASTRAK_", "Google's network plugin"},
    Owner{"NCCL_GPUDIRECTTCPX_", "Google's network plugin"},
    Owner{"NCCL_SHIMNET_", "Google's network plugin"},
    Owner{"NCCL_GPUVIZ_", "Google's network plugin"},
    Owner{"NCCL_NET_PLUGIN_TELEMETRY_", "Google's network plugin"},
    Owner{"NCCL_IBEXT_", "HPC-X's network plugin"},
    Owner{"NCCL_UCX_", "HPC-X's network plugin"},
    Owner{"NCCL_PLUGIN_P2P", "HPC-X's network plugin"},
    Owner{"NCCL_SHARP_", "HPC-X's network plugin"},
    Owner{"SHARP_", "SHARP"},
    Owner{"NCCL_CTRAN_", "NCCLX"},
    Owner{"NCCL_VERSION", "the container image"},
    Owner{"NCCL_HOME", "builds"},
    Owner{"NCCL_ROOT", "builds"},
    Owner{"NCCL_LIB", "builds"},
    Owner{"NCCL_INC", "builds"},
    Owner{"NCCL_PATH", "builds"},
    Owner{"NCCL_DIR", "builds"},
    Owner{"NCCL_BIN", "builds"},
    Owner{"NCCL_SRC", "builds"},
    Owner{"NCCL_BUILD", "builds"},
    Owner{"NCCL_PREFIX", "builds"},
};

// What NCCL_ is mistyped as. RCCL_, CCL_, HCCL_ and the like are other libraries'.
constexpr std::array<std::string_view, 5> kMistypedPrefixes{"NCLL_", "NNCL_", "NCCLL_", "NCL_", "NCCL-"};

// Families whose names are few and long enough that a near miss is a typing mistake.
constexpr std::array<std::string_view, 4> kCheckedPrefixes{"TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "GLOO_"};

constexpr std::size_t kMostChanges = 3;
constexpr std::size_t kLongestName = 100;  // of all names known; the search's cost grows with the product of lengths

/// Length of the prefix that the name has; 0: none of them.
template <typename Prefixes>
std::size_t prefix_length(std::string_view name, const Prefixes& prefixes) {
  for (const std::string_view each : prefixes) {
    if (name.starts_with(each)) return each.size();
  }
  return 0;
}

std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return result;
}

}  // namespace

std::string_view to_string(Family family) {
  switch (family) {
    case Family::launcher: return "launcher";
    case Family::pytorch: return "PyTorch";
    case Family::nccl: return "NCCL";
    case Family::cuda: return "CUDA";
    case Family::gloo: return "Gloo";
    case Family::ucx: return "UCX";
    case Family::libfabric: return "libfabric";
    case Family::verbs: return "verbs";
    case Family::mpi: return "MPI";
    case Family::slurm: return "Slurm";
    case Family::pmix: return "PMIx";
    case Family::openmp: return "OpenMP";
    case Family::libddp: return "libddp";
  }
  return "?";
}

std::span<const Variable> variable_table() { return all_rows(); }

const Variable* find_variable(std::string_view name) {
  const auto& rows = all_rows();
  const auto found = std::lower_bound(rows.begin(), rows.end(), name,
                                      [](const Variable& row, std::string_view wanted) { return row.name < wanted; });
  return found != rows.end() && found->name == name ? &*found : nullptr;
}

std::optional<Family> family_of(std::string_view name) {
  if (const Variable* row = find_variable(name)) return row->family;
  const auto found = std::find_if(kPrefixes.begin(), kPrefixes.end(),
                                  [&](const FamilyPrefix& each) { return name.starts_with(each.prefix); });
  if (found != kPrefixes.end()) return found->family;
  if (upper(name).starts_with("NCCL_") || prefix_length(name, kMistypedPrefixes) > 0) return Family::nccl;
  return std::nullopt;
}

std::string_view owner_of(std::string_view name) {
  const auto found =
      std::find_if(kOwners.begin(), kOwners.end(), [&](const Owner& owner) { return name.starts_with(owner.prefix); });
  return found == kOwners.end() ? std::string_view{} : found->name;
}

std::string meant_name(std::string_view name, std::span<const std::string> more_names) {
  if (name.size() > kLongestName || !owner_of(name).empty()) return {};
  const std::string wanted = upper(name);
  constexpr std::array<std::string_view, 1> kRightPrefix{"NCCL_"};
  const std::size_t of_nccl = std::max(prefix_length(wanted, kRightPrefix), prefix_length(wanted, kMistypedPrefixes));
  const std::size_t prefix = of_nccl > 0 ? of_nccl : prefix_length(name, kCheckedPrefixes);
  if (prefix == 0) return {};
  const std::size_t changes =
      base::plausible_changes(name.size() - prefix, of_nccl > 0 ? kMostChanges : kMostChanges - 1);
  const auto may_be_meant =
      [&](std::string_view known) {  // by its length; names that are copied cost most of the search
        return known != name && known.size() <= wanted.size() + changes && wanted.size() <= known.size() + changes;
      };
  std::vector<std::string> candidates;
  for (const Variable& row : all_rows()) {
    const bool readable = row.standing == Standing::current || row.standing == Standing::undocumented ||
                          row.standing == Standing::deprecated;
    if (readable && may_be_meant(row.name)) candidates.emplace_back(row.name);
  }
  for (const std::string& more : more_names) {
    if (may_be_meant(more)) candidates.push_back(more);
  }
  return base::closest_word(wanted, candidates, changes);
}

}  // namespace ddp::diagnostics
