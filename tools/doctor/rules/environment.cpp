// Rules on environment variables: what the environment report finds, and switches that were left on.
#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "doctor/rule.hpp"

namespace ddp::tools::doctor {
namespace {

/// Which values are a switch that is on, as its reader reads them.
enum class On {
  one,      ///< the number 1
  nonzero,  ///< any other number than 0; a word is 0
  zero,     ///< the number 0, or a word: it switches something off
  set,      ///< any text
  word,     ///< this one, in upper or lower case
};

struct LeftOver {
  std::string_view name;
  On on;
  std::string_view word;
  std::string_view effect;
};

constexpr std::array kLeftOver{
    LeftOver{"NCCL_P2P_DISABLE", On::one, "", "GPUs of a node exchange data through the host's memory"},
    LeftOver{"NCCL_SHM_DISABLE", On::nonzero, "", "ranks of a node exchange data over the network where GPUs cannot"},
    LeftOver{"NCCL_NVLS_ENABLE", On::zero, "", "sums are not made in NVSwitch"},
    LeftOver{"NCCL_NTHREADS", On::set, "", "NCCL's own choice of threads by GPU is off"},
    LeftOver{"NCCL_BUFFSIZE", On::set, "", "NCCL's own size of buffers is off"},
    LeftOver{"NCCL_ALGO", On::set, "", "NCCL's own choice by size and network is off"},
    LeftOver{"NCCL_PROTO", On::set, "", "NCCL's own choice by size and network is off"},
    LeftOver{"NCCL_DEBUG", On::word, "TRACE", "every call is logged"},
    LeftOver{"CUDA_LAUNCH_BLOCKING", On::nonzero, "", "every kernel is waited for, and some NCCL programs hang"},
    LeftOver{"TORCH_DISTRIBUTED_DEBUG", On::word, "DETAIL", "every collective is compared over the network first"},
};

bool is_on(const LeftOver& each, const std::string& value) {
  const long long number = std::strtoll(value.c_str(), nullptr, 0);
  switch (each.on) {
    case On::one: return number == 1;
    case On::nonzero: return number != 0;
    case On::zero: return !value.empty() && number == 0;
    case On::set: return !value.empty();
    case On::word: return ::strcasecmp(value.c_str(), std::string(each.word).c_str()) == 0;
  }
  return false;
}

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
      if (!is_on(each, value)) continue;
      findings.on_rank(rank, fmt::format("{}={}: {}", each.name, value, each.effect),
                       fmt::format("unset {}", each.name));
    }
  }
}

/// Whether no_proxy has the host: by its name, a domain of it (".cluster"), or "*".
bool is_exempt(std::string_view list, const std::string& host) {
  while (!list.empty()) {
    std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(entry.size() + 1, list.size()));
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    if (entry.starts_with('.')) entry.remove_prefix(1);
    if (entry.empty()) continue;
    const bool ends =
        host.size() > entry.size() && host.ends_with(entry) && host[host.size() - entry.size() - 1] == '.';
    if (entry == "*" || entry == host || ends) return true;
  }
  return false;
}

void check_proxies(const JobFacts& job, Findings& findings) {
  if (!job.several_nodes()) return;
  for (const RankFacts& rank : job.ranks) {
    std::string_view proxy;
    for (const std::string_view name : {"http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"}) {
      if (proxy.empty() && !rank.variable(name).empty()) proxy = name;
    }
    if (proxy.empty()) continue;
    const std::string list = rank.variable("no_proxy") + "," + rank.variable("NO_PROXY");
    const auto other = std::find_if(job.nodes.begin(), job.nodes.end(), [&](const NodeRecord& node) {
      return node.host != rank.host && !is_exempt(list, node.host);
    });
    if (other == job.nodes.end()) continue;
    findings.on_rank(rank, fmt::format("{} is set, and no_proxy does not have the nodes", proxy));
  }
}

constexpr Rule kEnvironmentRules[] = {
    {.id = "env-differs",
     .severity = Severity::error,
     .title = "a variable differs that must be equal on all ranks",
     .meaning =
         "Ranks choose other algorithms, sizes or networks than their partners: they hang, or fail while connecting.",
     .fix = "export one value to all ranks",
     .check = &check_report},
    {.id = "env-nccl-version",
     .severity = Severity::error,
     .title = "different NCCL versions",
     .meaning = "NCCL refuses ('Mismatched NCCL version detected').",
     .fix = "make LD_LIBRARY_PATH, the Python environment or the container the same on all nodes",
     .check = &check_report},
    {.id = "env-range",
     .severity = Severity::error,
     .title = "a value is out of range",
     .meaning = "The reader takes its default, cuts the value off, or fails when it is used.",
     .fix = "a value in the range",
     .check = &check_report},
    {.id = "env-misspelt",
     .severity = Severity::warning,
     .title = "unrecognized variable name",
     .meaning = "It resembles a known one; libraries ignore unknown names silently.",
     .fix = "rename it",
     .check = &check_report},
    {.id = "env-unknown",
     .severity = Severity::warning,
     .title = "unknown NCCL variable",
     .meaning = "It has no effect, unless a plugin reads it.",
     .fix = "unset it",
     .check = &check_report},
    {.id = "env-unread",
     .severity = Severity::warning,
     .title = "variable without a reader",
     .meaning = "It is often set, but no library reads it, or the installed NCCL does not.",
     .fix = "unset it, or use the suggested name",
     .check = &check_report},
    {.id = "env-removed",
     .severity = Severity::warning,
     .title = "removed variable",
     .meaning = "Newer versions of the library ignore it.",
     .fix = "use its replacement",
     .check = &check_report},
    {.id = "env-deprecated",
     .severity = Severity::warning,
     .title = "deprecated variable",
     .meaning = "It still works, but may be removed.",
     .fix = "use its replacement",
     .check = &check_report},
    {.id = "env-misread",
     .severity = Severity::warning,
     .title = "a value is read as something else",
     .meaning = "NCCL reads 'true' as 0 and drops words that it does not know, without a message.",
     .fix = "write what the variable's grammar wants",
     .check = &check_report},
    {.id = "env-conf",
     .severity = Severity::warning,
     .title = "nccl.conf differs between nodes",
     .meaning = "It sets variables of NCCL that the environment does not have, here for some nodes only.",
     .fix = "make the files equal",
     .check = &check_report},
    {.id = "env-size",
     .severity = Severity::warning,
     .title = "an environment is too large to be compared",
     .meaning = "Some of its variables were left out.",
     .fix = "unset what is not needed",
     .check = &check_report},
    {.id = "env-left-over",
     .severity = Severity::warning,
     .title = "a switch for debugging or tuning is on",
     .meaning = "Such variables stay in job scripts long after they were needed, and cost speed.",
     .fix = "unset it, unless it is wanted",
     .check = &check_left_over},
    {.id = "env-proxy",
     .severity = Severity::info,
     .title = "connections between nodes may take an HTTP proxy",
     .meaning =
         "NCCL, Gloo and libddp do not look at it. Programs that speak HTTP or gRPC with other nodes (etcd, Ray, "
         "metrics, parameter servers) do: they hang or are refused.",
     .fix = "no_proxy with the nodes' names or domain, or unset the proxy in the job",
     .check = &check_proxies},
};

}  // namespace

std::span<const Rule> environment_rules() { return kEnvironmentRules; }

}  // namespace ddp::tools::doctor
