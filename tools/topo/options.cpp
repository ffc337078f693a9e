#include "topo/options.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "command/option_word.hpp"
#include "command/usage_error.hpp"

namespace ddp::tools {
namespace {

constexpr const char* kTopoHelp =
    "Usage: ddp-info topo [OPTIONS]\n"
    "\n"
    "Shows the machine and what follows from it: each rank's GPU, network adapter, NUMA node and cores, and its\n"
    "environment variables.\n"
    "\n"
    "Alone, it shows what ranks on this machine (or that of an XML file) would get. Started by a launcher with "
    "several\n"
    "ranks, it shows what every rank of the job has and whether that is right; rank 0 prints for all, and identical\n"
    "nodes are shown once.\n"
    "\n"
    "Options:\n"
    "  -h, --help                Print this help and exit.\n"
    "      --nproc N             Ranks on the machine, 1 to 4096. Default: one per usable GPU; without GPUs, one per "
    "NUMA\n"
    "                            node.\n"
    "      --bind POLICY         Where a rank's cores are chosen: numa (an even share of the nearest NUMA node), core "
    "(one\n"
    "                            core), socket (a share of the nearest package), none (all allowed cores). Default:\n"
    "                            DDP_BIND, else numa.\n"
    "      --gpus WHICH          GPUs that each rank sees: all (ordered so that local rank i has GPU i), one (its "
    "own),\n"
    "                            none (nothing is set). Default: DDP_GPUS, else all.\n"
    "      --xml FILE            Use another machine: a file of --export, of lstopo (hwloc 2; with hwloc 3, its "
    "option\n"
    "                            '--export-xml-flags v2'), or in NCCL's topology format. This shell's environment and "
    "job\n"
    "                            are ignored.\n"
    "      --export FILE         Write this machine as XML to FILE ('-': standard output) and exit.\n"
    "      --json                Print one JSON document instead of the table.\n"
    "      --svg FILE            Also draw the machine and the ranks' cores and devices into FILE.\n"
    "      --explain RANK        Instead of the table, explain the placement of RANK.\n"
    "      --no-job              Ignore the launcher that started this process.\n"
    "\n"
    "Examples:\n"
    "  ddp-info topo                                       what ranks on this machine would get, one per GPU\n"
    "  ddp-info topo --nproc 4 --explain 2                 why local rank 2 of 4 gets its GPU, adapter and cores\n"
    "  srun --mpi=pmix -N2 --ntasks-per-node=8 ddp-info topo   what the ranks of a job have\n"
    "  ddp-info topo --export node.xml                     record this machine ...\n"
    "  ddp-info topo --xml node.xml --svg node.svg         ... and inspect it elsewhere, with a picture\n"
    "  ddp-info topo --json | jq '.nodes[0].ranks[].gpu'   for programs; docs/ddp-info.md describes the fields\n"
    "\n"
    "Options may be abbreviated while they are unambiguous.\n"
    "In a job, --nproc, --xml and --export concern rank 0's machine only.\n"
    "Exit status: 0 success; 1 failure (a file, reading the hardware, a rank of the job); 2 wrong command line.\n";

static_assert(kMaxRanks == 4096);  // in kTopoHelp

constexpr const char* kSeeHelp = "'ddp-info topo --help' lists the options";

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw UsageError{"reading the command line", std::move(cause), std::move(hint)};
}

int parse_number(std::string_view option, const std::string& text, int lowest, int highest) {
  int value = 0;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, value);
  const std::string_view why = end != last || status == std::errc::invalid_argument ? "is not a whole number"
                               : status == std::errc::result_out_of_range           ? "is out of range"
                               : value < lowest                                     ? "is too small"
                               : value > highest                                    ? "is too large"
                                                                                    : "";
  if (why.empty()) return value;
  throw UsageError{fmt::format("reading {}", option), fmt::format("'{}' {}", text, why),
                   highest == std::numeric_limits<int>::max()
                       ? fmt::format("give a whole number from {}", lowest)
                       : fmt::format("give a whole number from {} to {}", lowest, highest)};
}

/// What @p read makes of a word, whose Error becomes a UsageError.
template <class Value>
Value parse_word(Value (*read)(std::string, std::string_view), const std::string& option, const std::string& text) {
  try {
    return read("reading " + option, text);
  } catch (const Error& error) {
    throw UsageError{error.attempted(), error.cause(), error.hint()};
  }
}

std::string parse_file_name(std::string_view option, const std::string& text) {
  if (text.empty()) throw UsageError{fmt::format("reading {}", option), "the file name is empty", "give a file name"};
  return text;
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.push_back("--" + option->get_lnames().front());
  return names;
}

/// Normalizes the words for CLI11: full option names with dashes, values as separate words.
std::vector<std::string> plain_words(std::span<const std::string> arguments, const CLI::App& app) {
  std::vector<std::string> plain;
  bool value_follows = false;
  for (const std::string& word : arguments) {
    if (value_follows) {
      value_follows = false;
      plain.push_back(word);
      continue;
    }
    if (word == "-h") {
      plain.push_back(word);
      continue;
    }
    if (!word.starts_with('-')) reject(fmt::format("'{}' is no option", word), kSeeHelp);
    const auto equals = word.find('=');
    std::string name = full_option(word.substr(0, equals), long_names(app), kSeeHelp);
    const bool takes_value = app.get_option(name)->get_items_expected_max() > 0;
    if (equals != std::string::npos && !takes_value) {
      reject(fmt::format("option '{}' takes no value", name), "leave out the '=' and what follows");
    }
    plain.push_back(std::move(name));
    if (equals != std::string::npos) plain.push_back(word.substr(equals + 1));
    value_follows = takes_value && equals == std::string::npos;
  }
  if (value_follows)
    reject(fmt::format("option '{}' needs a value", plain.back()), "'ddp-info topo --help' shows which");
  return plain;
}

void check_combination(const TopoOptions& options, const CLI::App& app) {
  if (options.export_file) {
    for (const CLI::Option* other : app.get_options()) {
      const std::string name = "--" + other->get_lnames().front();
      if (other->count() == 0 || name == "--export" || name == "--no-job") continue;
      reject(fmt::format("--export and {} exclude each other", name), "--export writes this machine and does no more");
    }
  }
  if (options.json && options.explain) {
    reject("--json and --explain exclude each other", "the JSON document has the decisions of every rank");
  }
  if (options.svg == "-") {
    reject("--svg needs a file: standard output has the report", "give a file name, for example --svg topo.svg");
  }
  if (options.nproc && options.explain && *options.explain >= *options.nproc) {
    throw UsageError{"reading --explain", fmt::format("there is no rank {} among {}", *options.explain, *options.nproc),
                     fmt::format("give a rank from 0 to {}", *options.nproc - 1)};
  }
}

}  // namespace

std::variant<TopoOptions, HelpText> parse_topo_options(std::span<const std::string> arguments) {
  TopoOptions options;
  CLI::App app{"", "ddp-info topo"};
  app.set_help_flag("-h,--help");

  const auto add_value = [&app](const std::string& name, const auto& read) {
    app.add_option_function<std::string>(name, read)->take_last();
  };
  add_value("--nproc", [&](const std::string& text) { options.nproc = parse_number("--nproc", text, 1, kMaxRanks); });
  add_value("--bind",
            [&](const std::string& text) { options.bind = parse_word(&topology::read_bind_policy, "--bind", text); });
  add_value("--gpus", [&](const std::string& text) {
    options.gpus = parse_word(&topology::read_gpu_visibility, "--gpus", text);
  });
  add_value("--xml", [&](const std::string& text) { options.xml = parse_file_name("--xml", text); });
  add_value("--export", [&](const std::string& text) { options.export_file = parse_file_name("--export", text); });
  app.add_flag("--json", options.json);
  add_value("--svg", [&](const std::string& text) { options.svg = parse_file_name("--svg", text); });
  add_value("--explain", [&](const std::string& text) {
    options.explain = parse_number("--explain", text, 0, std::numeric_limits<int>::max());
  });
  app.add_flag("--no-job", options.no_job);

  std::vector<std::string> words = plain_words(arguments, app);
  std::reverse(words.begin(), words.end());  // CLI11 takes its arguments from the back
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    return HelpText{kTopoHelp};
  } catch (const CLI::ParseError& error) {
    reject(error.what(), kSeeHelp);
  }
  check_combination(options, app);
  return options;
}

}  // namespace ddp::tools
