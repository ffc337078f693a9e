#include "doctor/report.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "topo/wording.hpp"

namespace ddp::tools::doctor {
namespace {

using Json = nlohmann::ordered_json;

std::size_t count(const Examination& examination, Severity severity) {
  return static_cast<std::size_t>(
      std::count_if(examination.findings.begin(), examination.findings.end(),
                    [&](const Finding& finding) { return finding.rule->severity == severity; }));
}

std::string verdict(const Examination& examination) {
  std::string text;
  const auto add = [&](std::size_t number, std::string words) {
    if (number > 0) text += (text.empty() ? "" : ", ") + std::move(words);
  };
  const std::size_t infos = count(examination, Severity::info);
  add(count(examination, Severity::error), counted(count(examination, Severity::error), "error"));
  add(count(examination, Severity::warning), counted(count(examination, Severity::warning), "warning"));
  if (text.empty()) text = "ok";
  if (infos > 0) text += fmt::format(" ({})", counted(infos, "remark"));
  return text;
}

std::string where(const JobFacts& job, const Finding& finding) {
  if (job.ranks.size() == 1) return job.nodes.front().host;
  std::string text = finding.hosts.size() == job.nodes.size() && job.several_nodes()
                         ? fmt::format("all {} nodes", job.nodes.size())
                         : host_list(finding.hosts);
  return text + fmt::format(", {} {}", finding.ranks.size() == 1 ? "rank" : "ranks", number_list(finding.ranks));
}

}  // namespace

std::string format_text(const Examination& examination) {
  const JobFacts& job = *examination.job;
  std::string text = fmt::format("{}: {}, {}, {}, {:.2f} s\n", verdict(examination), counted(job.nodes.size(), "node"),
                                 counted(job.ranks.size(), "rank"), counted(examination.rules, "rule"),
                                 static_cast<double>(examination.time.count()) / 1000);
  const Rule* last = nullptr;
  for (const Finding& finding : examination.findings) {
    if (finding.rule != last) {
      text += fmt::format("{} {}: {}\n", to_string(finding.rule->severity), finding.rule->id, finding.rule->title);
    }
    last = finding.rule;
    text += fmt::format("  {}: {}\n    fix: {}\n", plain_ascii(where(job, finding)), plain_ascii(finding.evidence),
                        plain_ascii(finding.fix));
  }
  return text;
}

std::string format_json(const Examination& examination) {
  Json findings = Json::array();
  for (const Finding& finding : examination.findings) {
    findings.push_back({{"rule", finding.rule->id},
                        {"severity", to_string(finding.rule->severity)},
                        {"title", finding.rule->title},
                        {"hosts", finding.hosts},
                        {"ranks", finding.ranks},
                        {"evidence", finding.evidence},
                        {"fix", finding.fix}});
  }
  const Json document = {{"schema", kDoctorSchema},
                         {"verdict", verdict(examination)},
                         {"errors", count(examination, Severity::error)},
                         {"warnings", count(examination, Severity::warning)},
                         {"nodes", examination.job->nodes.size()},
                         {"ranks", examination.job->ranks.size()},
                         {"rules", examination.rules},
                         {"seconds", static_cast<double>(examination.time.count()) / 1000},
                         {"findings", std::move(findings)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string explain(const Rule& rule) {
  return fmt::format("{} ({}): {}\n\n{}\n\nFix: {}\n", rule.id, to_string(rule.severity), rule.title, rule.meaning,
                     rule.fix);
}

std::string format_rules() {
  std::string text =
      "# Rules of ddp-info doctor\n"
      "\n"
      "What [`ddp-info doctor`](diagnostics.md#doctor) looks for. `ddp-info doctor --rules` prints this page; "
      "`--explain RULE` one\n"
      "rule, `--rule` and `--skip` choose among them.\n";
  for (const Family& family : families()) {
    text +=
        fmt::format("\n## {}\n\n| Rule | Severity | Found | Why it matters | Fix |\n| --- | --- | --- | --- | --- |\n",
                    family.name);
    for (const Rule& rule : family.rules) {
      text += fmt::format("| `{}` | {} | {} | {} | {} |\n", rule.id, to_string(rule.severity), rule.title, rule.meaning,
                          rule.fix);
    }
  }
  return text;
}

}  // namespace ddp::tools::doctor
