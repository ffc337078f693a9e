#include "selftest/verdict.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::selftest {
namespace {

std::string_view word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass: return "PASS";
    case Verdict::warning: return "WARN";
    case Verdict::fail: return "FAIL";
    case Verdict::unknown: break;
  }
  return "----";
}

std::map<int, std::size_t> node_of_ranks(const std::vector<TestedNode>& nodes) {
  std::map<int, std::size_t> node_of;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (const int rank : nodes[node].ranks) node_of.emplace(rank, node);
  }
  return node_of;
}

/// Nodes at fault for a finding of node @p own.
std::set<std::size_t> blamed_nodes(const Finding& finding, std::size_t own, const std::map<int, std::size_t>& node_of,
                                   std::size_t num_nodes) {
  std::set<std::size_t> nodes;
  for (const int rank : finding.blamed) {
    if (const auto found = node_of.find(rank); found != node_of.end()) nodes.insert(found->second);
  }
  const std::size_t others = nodes.size() - nodes.count(own);
  if (num_nodes > 2 && others * 2 > num_nodes - 1) return {own};
  return nodes;
}

/// Processors of all the node's ranks together.
CpuSet processors_of(const TestedNode& node) {
  CpuSet cpus;
  for (const auto& result : node.results) {
    if (result) cpus = cpus | result->cpus;
  }
  return cpus;
}

bool complete(const TestedNode& node) {
  return std::all_of(node.results.begin(), node.results.end(), [](const auto& result) { return result.has_value(); });
}

/// Processors available to the ranks of a typical node: the median.
int usual_processors(const std::vector<TestedNode>& nodes) {
  std::vector<int> counts;
  for (const TestedNode& node : nodes) {
    if (complete(node)) counts.push_back(processors_of(node).count());
  }
  if (counts.empty()) return 0;
  std::sort(counts.begin(), counts.end());
  return counts[counts.size() / 2];
}

std::string narrow_mask(const TestedNode& node, int usual) {
  if (!complete(node)) return {};
  const CpuSet cpus = processors_of(node);
  const auto num_ranks = static_cast<int>(node.ranks.size());
  if (cpus.count() < num_ranks) {
    return fmt::format("binding: its {} ranks share {} processor{} ({})", num_ranks, cpus.count(),
                       cpus.count() == 1 ? "" : "s", cpus.to_string());
  }
  if (cpus.count() >= usual) return {};
  return fmt::format("binding: its ranks may run on {} processors ({}), on most nodes on {}", cpus.count(),
                     cpus.to_string(), usual);
}

/// Keeps the worst verdict and its first reason.
void worsen(NodeVerdict& node, Verdict verdict, std::string reason) {
  const auto rank = [](Verdict value) {  // unknown hides a warning, a failure hides unknown
    return value == Verdict::fail ? 3 : value == Verdict::unknown ? 2 : value == Verdict::warning ? 1 : 0;
  };
  if (rank(verdict) <= rank(node.verdict)) return;
  node.verdict = verdict;
  node.reason = std::move(reason);
}

}  // namespace

std::vector<NodeVerdict> judge(const std::vector<TestedNode>& nodes) {
  std::vector<NodeVerdict> verdicts;
  for (const TestedNode& node : nodes) {
    verdicts.push_back({.host = node.host, .ranks = node.ranks, .verdict = Verdict::pass});
  }
  const auto node_of = node_of_ranks(nodes);
  // A node's own findings come first: they are closer to the cause than what others say.
  for (const bool of_itself : {true, false}) {
    for (std::size_t own = 0; own < nodes.size(); ++own) {
      for (const auto& result : nodes[own].results) {
        if (!result) continue;
        for (const Finding& finding : result->findings) {
          const std::string text = fmt::format("{}: rank {}: {}", finding.check, result->rank, finding.what);
          if (finding.severity == Severity::warning) {
            worsen(verdicts[own], Verdict::warning, text);
            continue;
          }
          const auto blamed = blamed_nodes(finding, own, node_of, nodes.size());
          for (const std::size_t node : blamed) {
            if ((node == own) != of_itself) continue;
            worsen(verdicts[node], Verdict::fail,
                   node == own ? text : fmt::format("{} says: {}", nodes[own].host, text));
          }
        }
      }
    }
  }
  const int usual = usual_processors(nodes);
  for (std::size_t own = 0; own < nodes.size(); ++own) {
    for (const auto& result : nodes[own].results) {
      if (!result) {
        worsen(verdicts[own], Verdict::unknown, "its result did not reach rank 0");
        continue;
      }
      for (const Finding& finding : result->findings) {
        if (finding.severity == Severity::failure) {
          worsen(verdicts[own], Verdict::unknown,
                 fmt::format("{}: rank {}: {}", finding.check, result->rank, finding.what));
        }
      }
    }
    if (std::string text = narrow_mask(nodes[own], usual); !text.empty()) {
      worsen(verdicts[own], Verdict::warning, std::move(text));
    }
  }
  return verdicts;
}

std::string format_table(const std::vector<NodeVerdict>& verdicts) {
  const auto ranks_of = [](const NodeVerdict& node) {
    const std::string text = format_ranks(node.ranks);  // "ranks 0-1"
    return text.substr(text.find(' ') + 1);
  };
  std::size_t host_width = 4;
  std::size_t ranks_width = 5;
  for (const NodeVerdict& node : verdicts) {
    host_width = std::max(host_width, node.host.size());
    ranks_width = std::max(ranks_width, ranks_of(node).size());
  }
  const auto line = [&](std::string_view host, std::string_view result, std::string_view ranks, std::string_view why) {
    std::string text = fmt::format("{:<{}}  {:<6}  {:<{}}  {}", host, host_width, result, ranks, ranks_width, why);
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
    text.erase(text.find_last_not_of(' ') + 1);
    return text + '\n';
  };
  std::string table = line("NODE", "RESULT", "RANKS", "REASON");
  for (const NodeVerdict& node : verdicts) table += line(node.host, word_of(node.verdict), ranks_of(node), node.reason);
  return table;
}

}  // namespace ddp::selftest
