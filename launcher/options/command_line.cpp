#include "options/command_line.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <ddp/version.hpp>

#include "options/argument_split.hpp"
#include "options/option_values.hpp"
#include "report/exit_error.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kDescription =
    "Starts the ranks of a data-parallel job on this host, gives each the environment of torchrun and a PMIx server,\n"
    "and watches over them: when one fails, the others are ended and the root cause is reported.";

constexpr const char* kFooter =
    "Everything from PROGRAM on belongs to the program; '--' also ends ddprun's options.\n"
    "\n"
    "Examples:\n"
    "  ddprun --nproc-per-node 4 ./train --epochs 3      four ranks of a program\n"
    "  ddprun --nproc-per-node=8 python -u train.py      eight ranks of a Python script\n"
    "  ddprun --failure-grace 0 --nproc-per-node 2 ./a   end the other rank at once when one fails\n"
    "\n"
    "Signals: SIGTERM, SIGINT, SIGHUP and SIGQUIT go to the process groups of all ranks and end the job (a second\n"
    "SIGINT kills it at once); SIGUSR1 and SIGUSR2 go to the ranks' own processes, and the job goes on.\n"
    "Exit status: 0 when all ranks return 0; else that of the first rank that failed (128+N for signal N);\n"
    "128+N after signal N to ddprun; 2 wrong command line; 126 program not executable; 127 program not found.\n";

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: ddprun [OPTIONS] PROGRAM [ARGUMENTS...]\n";
  }
};

std::vector<OptionShape> shapes_of(const CLI::App& app) {
  std::vector<OptionShape> shapes;
  for (const CLI::Option* option : app.get_options()) {
    const bool takes_value = option->get_items_expected_max() > 0;
    for (const auto& name : option->get_lnames()) shapes.push_back({.name = "--" + name, .takes_value = takes_value});
    for (const auto& name : option->get_snames()) shapes.push_back({.name = "-" + name, .takes_value = takes_value});
  }
  return shapes;
}

/// What was not given comes from the environment, which is read only then.
void take_defaults(LaunchOptions& options, std::optional<BindPolicy> bind, std::optional<topology::GpuVisibility> gpus,
                   const base::Environment& environment) {
  const auto value_of = [&](const char* name) {
    try {
      return environment.text(name);
    } catch (const Error& error) {
      throw ExitError{kExitUsage, error.detail()};
    }
  };
  if (!bind) {
    const std::string word = value_of("DDP_BIND");
    if (!word.empty()) bind = parse_bind_policy(word);
  }
  options.bind = bind.value_or(BindPolicy::numa);
  options.gpus = gpus ? *gpus : topology::parse_gpu_visibility(value_of("DDP_GPUS"));
}

}  // namespace

std::variant<LaunchOptions, Information> parse_command_line(std::span<const std::string> arguments,
                                                            const base::Environment& environment) {
  LaunchOptions options;
  std::optional<BindPolicy> bind;
  std::optional<topology::GpuVisibility> gpus;
  CLI::App app{kDescription, "ddprun"};
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "Show this help and end.");
  app.set_version_flag("--version", std::string("ddprun (libddp) ") + DDP_VERSION_STRING, "Show the version and end.");

  const auto add_value = [&app](const std::string& name, const std::string& help, const auto& read) {
    return app.add_option_function<std::string>(
        name, [name, read](const std::string& text) { read(name, text); }, help);
  };
  add_value("--nproc-per-node", fmt::format("Ranks to start, 1 to {} (default 1).", kMaxRanksPerNode),
            [&](const std::string& name, const std::string& text) {
              options.nproc_per_node = parse_count(name, text, kMaxRanksPerNode);
            })
      ->type_name("N")
      ->take_last();
  add_value(
      "--bind",
      "Cores for each rank: its share of the NUMA node nearest to its GPU (numa, the default), one core (core), its "
      "share of the nearest package (socket), or whatever ddprun may use (none).",
      [&](const std::string& name, const std::string& text) { bind = parse_word(name, text, &parse_bind_policy); })
      ->type_name("POLICY")
      ->take_last();
  add_value(
      "--gpus",
      "GPUs that a rank sees: all, ordered so that local rank i is GPU i (all, the default), its own only (one), or "
      "no change to CUDA_VISIBLE_DEVICES and its like (none).",
      [&](const std::string& name, const std::string& text) {
        gpus = parse_word(name, text, &topology::parse_gpu_visibility);
      })
      ->type_name("WHICH")
      ->take_last();
  add_value(
      "--failure-grace",
      "How long the other ranks may go on after the first failure, so that they can report what they saw "
      "(default 2).",
      [&](const std::string& name, const std::string& text) { options.failure_grace = parse_seconds(name, text); })
      ->type_name("SECONDS")
      ->take_last();
  add_value(
      "--shutdown-timeout", "Time from SIGTERM to SIGKILL when the job is ended (default 30).",
      [&](const std::string& name, const std::string& text) { options.shutdown_timeout = parse_seconds(name, text); })
      ->type_name("SECONDS")
      ->take_last();
  app.add_flag("-v,--verbose", options.verbose, "Tell on standard error what ddprun does.");

  SplitArguments split = split_arguments(arguments, shapes_of(app));
  std::reverse(split.options.begin(), split.options.end());  // CLI11 takes its arguments from the back
  try {
    app.parse(split.options);
  } catch (const CLI::CallForHelp&) {
    return Information{app.help()};
  } catch (const CLI::CallForVersion& version) {
    return Information{std::string(version.what()) + "\n"};
  } catch (const CLI::ParseError& error) {
    throw ExitError{kExitUsage,
                    {.code = ErrorCode::invalid_argument,
                     .attempted = "reading the command line",
                     .cause = error.what(),
                     .native = error.get_name(),
                     .ranks = {},
                     .hint = "'ddprun --help' lists the options"}};
  }
  if (split.command.empty()) {
    throw ExitError{kExitUsage,
                    {.code = ErrorCode::invalid_argument,
                     .attempted = "reading the command line",
                     .cause = "no program to run",
                     .native = {},
                     .ranks = {},
                     .hint = "write it after the options: ddprun [OPTIONS] PROGRAM [ARGUMENTS...]"}};
  }
  take_defaults(options, bind, gpus, environment);
  options.command = std::move(split.command);
  return options;
}

}  // namespace ddp::launcher
