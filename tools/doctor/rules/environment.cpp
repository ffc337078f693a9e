// Rules on environment variables: what the environment report finds, and switches that were left on.
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "doctor/families.hpp"

namespace ddp::tools::doctor {
namespace {

struct LeftOver {
  std::string_view name;
  std::string_view value;  ///< that counts; empty: any but 0
  std::string_view effect;
};

constexpr std::array kLeftOver{
    LeftOver{"NCCL_P2P_DISABLE", "1", "GPUs of a node exchange data through the host's memory"},
    LeftOver{"NCCL_SHM_DISABLE", "", "ranks of a node exchange data over the network where GPUs cannot"},
    LeftOver{"NCCL_ALGO", "", "NCCL's own choice by size and network is off"},
    LeftOver{"NCCL_PROTO", "", "NCCL's own choice by size and network is off"},
    LeftOver{"NCCL_DEBUG", "TRACE", "every call is logged"},
    LeftOver{"CUDA_LAUNCH_BLOCKING", "", "every kernel is waited for, and some NCCL programs hang"},
    LeftOver{"TORCH_DISTRIBUTED_DEBUG", "DETAIL", "every collective is compared over the network first"},
};

/// The report's rules have the ids of these.
void check_report(const JobFacts& job, Findings& findings) {
  for (const EnvironmentFinding& found : job.environment) {
    if (found.rule == findings.rule().id) findings.on_ranks(found.ranks, found.text, found.remedy);
  }
}

void check_left_over(const JobFacts& job, Findings& findings) {
  for (const RankFacts& rank : job.ranks) {
    for (const LeftOver& each : kLeftOver) {
      const std::string value = rank.variable(each.name);
      if (each.value.empty() ? value.empty() || value == "0" : value != each.value) continue;
      findings.on_rank(rank, fmt::format("{}={}: {}", each.name, value, each.effect),
                       fmt::format("unset {}", each.name));
    }
  }
}

constexpr Rule kEnvironmentRules[] = {
    {.id = "env-differs",
     .severity = Severity::error,
     .title = "a variable differs that must be equal on all ranks",
     .meaning =
         "Ranks choose other algorithms, sizes or networks than their partners: they hang, or fail while connecting.",
     .mend = "export one value to all ranks",
     .check = &check_report},
    {.id = "env-nccl-version",
     .severity = Severity::error,
     .title = "ranks would load different NCCLs",
     .meaning = "NCCL refuses ('Mismatched NCCL version detected').",
     .mend = "make LD_LIBRARY_PATH, the Python environment or the container the same on all nodes",
     .check = &check_report},
    {.id = "env-range",
     .severity = Severity::error,
     .title = "a value is out of range",
     .meaning = "The reader takes its default, cuts the value off, or fails when it is used.",
     .mend = "a value in the range",
     .check = &check_report},
    {.id = "env-misspelt",
     .severity = Severity::warning,
     .title = "nobody reads a variable of this name",
     .meaning = "It looks like a known one; libraries say nothing of names that they do not know.",
     .mend = "rename it",
     .check = &check_report},
    {.id = "env-unknown",
     .severity = Severity::warning,
     .title = "NCCL does not know a variable",
     .meaning = "It has no effect, unless a plugin reads it.",
     .mend = "unset it",
     .check = &check_report},
    {.id = "env-unread",
     .severity = Severity::warning,
     .title = "a variable is not read",
     .meaning = "It is often set, but nobody, or not the NCCL that is installed, looks at it.",
     .mend = "unset it, or use what it says",
     .check = &check_report},
    {.id = "env-removed",
     .severity = Severity::warning,
     .title = "a variable is no longer read",
     .meaning = "What it set must be set otherwise, or has no successor.",
     .mend = "use its successor",
     .check = &check_report},
    {.id = "env-deprecated",
     .severity = Severity::warning,
     .title = "a variable is deprecated",
     .meaning = "It still works, and will not for long.",
     .mend = "use its successor",
     .check = &check_report},
    {.id = "env-misread",
     .severity = Severity::warning,
     .title = "a value is read as something else",
     .meaning = "NCCL reads 'true' as 0 and drops words that it does not know, without a message.",
     .mend = "write what the variable's grammar wants",
     .check = &check_report},
    {.id = "env-conf",
     .severity = Severity::warning,
     .title = "nodes have different files nccl.conf",
     .meaning = "It sets variables of NCCL that the environment does not have, here for some nodes only.",
     .mend = "make the files equal",
     .check = &check_report},
    {.id = "env-size",
     .severity = Severity::warning,
     .title = "an environment is too large to be compared",
     .meaning = "Some of its variables were left out.",
     .mend = "unset what is not needed",
     .check = &check_report},
    {.id = "env-left-over",
     .severity = Severity::warning,
     .title = "a switch for debugging or tuning is on",
     .meaning = "Such variables stay in job scripts long after they were needed, and cost speed.",
     .mend = "unset it, unless it is wanted",
     .check = &check_left_over},
};

}  // namespace

std::span<const Rule> environment_rules() { return kEnvironmentRules; }

}  // namespace ddp::tools::doctor
