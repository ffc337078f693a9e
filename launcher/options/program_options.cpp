// Options on what is executed as a rank.
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "base/backend_file.hpp"
#include "base/imitated_launchers.hpp"
#include "cli/option_values.hpp"
#include "options/option_groups.hpp"

namespace ddp::launcher {

namespace {

StandardInput parse_standard_input(const std::string& source, const std::string& text) {
  static const std::vector<std::string> kWords{"0", "all", "none"};
  const std::string& word = cli::parse_choice(source, text, kWords);
  return word == "all" ? StandardInput::all : word == "none" ? StandardInput::none : StandardInput::rank_zero;
}

/// A list of one or both of @p words.
base::ChosenWords parse_words(const std::string& source, const std::string& text,
                              const std::array<std::string_view, 2>& words) {
  const std::vector<std::string> known(words.begin(), words.end());
  for (const std::string_view name : cli::parts_of(text, ','))
    static_cast<void>(cli::parse_choice(source, std::string(name), known));
  return base::read_words(source, text, words);
}

}  // namespace

void add_program_options(OptionTable& table, OptionDraft& draft) {
  table.begin_group("Program");
  table.add_flag("-m,--module", "PROGRAM is a Python module, run with 'python -m'.", draft.module).torchrun();
  table.add_flag("--no-python", "Execute PROGRAM directly, even if it looks like a Python script.", draft.no_python)
      .torchrun();
  table.add_flag("--run-path", "Run PROGRAM with runpy.run_path. Overrides --module and --no-python.", draft.run_path)
      .torchrun();
  table.add_flag("--pass-local-rank",
                 "Give the script --local-rank=N before its own arguments, as torch.distributed.launch does.",
                 draft.options.pass_local_rank);
  table.add_flag("--use-env", "Ignored, for compatibility with torch.distributed.launch: LOCAL_RANK is always set.",
                 draft.use_env);
  table
      .add_value("--role", "NAME", "ROLE_NAME of the ranks, also in output prefixes (default 'default').",
                 [&](const auto& source, const auto& text) {
                   if (text.size() > kMaxRoleBytes) {
                     cli::reject_value(source, text, "is too long",
                                       fmt::format("a role has at most {} bytes", kMaxRoleBytes));
                   }
                   draft.options.role = text;
                 })
      .torchrun();
  table
      .add_value("--backend", "NAME",
                 "DDP_BACKEND of the ranks: what libddp's process groups use; cpu:NAME,cuda:NAME for a plugin for CUDA "
                 "tensors. With ddp, init_process_group() of PyTorch "
                 "programs that name no backend takes libddp's, if the Python package libddp is installed.",
                 [&](const auto& source, const auto& text) {
                   if (!base::backends_of(text)) {
                     cli::reject_value(source, text, "is not the name of a backend", base::kBackendRule);
                   }
                   draft.options.backend = text;
                 })
      .choices({base::kBackendWords.begin(), base::kBackendWords.end()});
  table.add_value(
      "--as", "NAMES",
      "horovod, mpi4py or both, as horovod,mpi4py: what the ranks' Python programs import by these names is "
      "libddp's, if the Python package libddp is installed. Sets DDP_AS.",
      [&](const auto& source, const auto& text) {
        draft.options.as = text_of(parse_words(source, text, base::kImportedWords), base::kImportedWords);
      });
  table.add_value("--imitate", "NAMES",
                  "mpirun, horovodrun or both: also set the variables from which their ranks learn their numbers, as "
                  "OMPI_COMM_WORLD_RANK and HOROVOD_RANK, for programs that read them. A real MPI reads them, too.",
                  [&](const auto& source, const auto& text) {
                    const base::ChosenWords chosen = parse_words(source, text, base::kImitatedWords);
                    draft.options.imitates_openmpi = chosen.first;
                    draft.options.imitates_horovod = chosen.second;
                  });
  table
      .add_value(
          "--stdin", "0|all|none",
          "Which ranks read ddprun's standard input: rank 0 (the default), all of them, or none. The others have "
          "/dev/null.",
          [&](const auto& source, const auto& text) {
            draft.options.standard_input = parse_standard_input(source, text);
          })
      .choices({"0", "all", "none"});
  table
      .add_value("--start-method", "METHOD",
                 "Ignored, for compatibility with torchrun: every rank is a separate program.",
                 [&](const auto& source, const auto& text) {
                   static const std::vector<std::string> kMethods{"spawn", "fork", "forkserver"};
                   if (cli::parse_choice(source, text, kMethods) != "spawn")
                     draft.notice(fmt::format("{} is ignored: every rank is a separate program", source));
                 })
      .torchrun()
      .choices({"spawn", "fork", "forkserver"});
  table
      .add_value("--event-log-handler", "NAME",
                 "Ignored, for compatibility with torchrun: see --report-json and --verbose.",
                 [&](const auto& source, const auto& text) {
                   if (text != "null")
                     draft.notice(fmt::format("{} is ignored: see --report-json and --verbose", source));
                 })
      .torchrun();
}

void settle_program_options(const OptionTable& table, OptionDraft& draft) {
  if (draft.use_env && draft.options.pass_local_rank)
    cli::reject_combination("--use-env and --pass-local-rank are mutually exclusive",
                            "drop --pass-local-rank for a script that reads LOCAL_RANK, else --use-env");
  const auto origin = [&](const char* name, const char* variable) { return table.given(name) ? name : variable; };
  if (draft.run_path) {
    if (draft.module) draft.notice("--module is ignored: --run-path runs PROGRAM as a file");
    draft.options.mode = ProgramMode::run_path;
  } else if (draft.module && draft.no_python) {
    cli::reject_combination(fmt::format("{} and {} are mutually exclusive", origin("--module", "PET_MODULE"),
                                        origin("--no-python", "PET_NO_PYTHON")),
                            "a module needs the Python interpreter: drop one of them");
  } else if (draft.module) {
    draft.options.mode = ProgramMode::module;
  } else if (draft.no_python) {
    draft.options.mode = ProgramMode::no_python;
  }
}

}  // namespace ddp::launcher
