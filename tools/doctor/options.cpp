#include "doctor/options.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/closest_word.hpp"
#include "command/option_word.hpp"
#include "command/usage_error.hpp"

namespace ddp::tools::doctor {

const char* const kDoctorHelp =
    "Usage: ddp-info doctor [OPTIONS]\n"
    "\n"
    "Looks for what makes jobs fail, hang or crawl: limits, /dev/shm, cores, names, clocks, interfaces, MTU, RDMA, "
    "GPUs,\n"
    "versions. Each finding has its evidence and how to fix it; the first line is the verdict.\n"
    "\n"
    "Alone, it examines this machine. Started by a launcher, it examines every rank's node and lets the nodes probe "
    "each\n"
    "other, and rank 0 prints for all. In a Slurm allocation of several nodes it starts itself on each with srun.\n"
    "\n"
    "Options:\n"
    "  -h, --help                Print this help and exit.\n"
    "      --json                Print one JSON document instead of text.\n"
    "      --explain RULE        Print what a rule looks for, why it matters and how to fix it.\n"
    "      --rules               Print all rules, in Markdown.\n"
    "      --rule RULE[,RULE...] Only these rules. May be repeated.\n"
    "      --skip RULE[,RULE...] All but these rules. May be repeated.\n"
    "      --fail-on WHAT        The least that makes the exit status not 0: info, warning (default), error, or "
    "never.\n"
    "      --no-job              Ignore the launcher and the allocation: this machine alone.\n"
    "\n"
    "Examples:\n"
    "  srun --mpi=pmix -N4 --ntasks-per-node=8 ddp-info doctor   before the program, with the program's options of "
    "srun\n"
    "  ddprun --nproc-per-node=8 ddp-info doctor                 the same under ddprun\n"
    "  ddp-info doctor --no-job --fail-on error                  in a prolog or health check of Slurm\n"
    "  ddp-info doctor --explain shm-size                        what /dev/shm is for\n"
    "\n"
    "Options may be abbreviated while they are unambiguous.\n"
    "Exit status: 0 nothing found (or less than --fail-on); 1 warnings; 2 errors; 3 it could not examine the job, or "
    "wrong\n"
    "command line.\n";

namespace {

constexpr const char* kSeeHelp = "'ddp-info doctor --help' lists the options";

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw UsageError{"reading the command line", std::move(cause), std::move(hint)};
}

const Rule& find_rule(const std::string& option, std::string_view id) {
  std::vector<std::string> known;
  for (const Family& family : families()) {
    for (const Rule& rule : family.rules) {
      if (rule.id == id) return rule;
      known.emplace_back(rule.id);
    }
  }
  const std::string closest = base::closest_word(std::string(id), known, 3);
  throw UsageError{
      "reading " + option, fmt::format("there is no rule '{}'", id),
      closest.empty() ? "'ddp-info doctor --rules' lists them" : fmt::format("did you mean '{}'?", closest)};
}

void add_rules(std::vector<const Rule*>& rules, const std::string& option, std::string_view list) {
  for (;;) {
    const auto comma = list.find(',');
    rules.push_back(&find_rule(option, list.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    list.remove_prefix(comma + 1);
  }
}

std::optional<Severity> parse_severity(const std::string& text) {
  for (const Severity severity : {Severity::info, Severity::warning, Severity::error}) {
    if (text == to_string(severity)) return severity;
  }
  if (text == "never") return std::nullopt;
  throw UsageError{"reading --fail-on", fmt::format("'{}' is not one of info, warning, error, never", text),
                   "choose one"};
}

bool contains(const std::vector<const Rule*>& rules, const Rule& rule) {
  return std::find(rules.begin(), rules.end(), &rule) != rules.end();
}

}  // namespace

bool DoctorOptions::wants(const Rule& rule) const {
  return (only.empty() || contains(only, rule)) && !contains(skipped, rule);
}

DoctorOptions parse_doctor_options(std::span<const std::string> arguments) {
  static const std::vector<std::string> kNames{"--help", "--json", "--explain", "--rules",
                                               "--rule", "--skip", "--fail-on", "--no-job"};
  DoctorOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "-h") {
      options.help = true;
      continue;
    }
    if (word == "--under-srun") {  // not for people, so not in the help
      options.under_srun = true;
      continue;
    }
    if (!word.starts_with('-')) reject(fmt::format("'{}' is no option", word), kSeeHelp);
    const auto equals = word.find('=');
    const std::string name = full_option(word.substr(0, equals), kNames, kSeeHelp);
    const bool takes_value = name == "--explain" || name == "--rule" || name == "--skip" || name == "--fail-on";
    if (!takes_value) {
      if (equals != std::string::npos) {
        reject(fmt::format("option '{}' takes no value", name), "leave out the '=' and what follows");
      }
      (name == "--help"    ? options.help
       : name == "--json"  ? options.json
       : name == "--rules" ? options.rules
                           : options.no_job) = true;
      continue;
    }
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      reject(fmt::format("option '{}' needs a value", name), "'ddp-info doctor --help' shows which");
    }
    const std::string value = equals == std::string::npos ? arguments[++i] : word.substr(equals + 1);
    if (name == "--explain") {
      options.explain = &find_rule(name, value);
    } else if (name == "--fail-on") {
      options.fail_on = parse_severity(value);
    } else {
      add_rules(name == "--rule" ? options.only : options.skipped, name, value);
    }
  }
  return options;
}

}  // namespace ddp::tools::doctor
