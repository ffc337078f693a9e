// Which Slurm a node has.
#include <string>
#include <string_view>

#include "command/program_output.hpp"
#include "doctor/collect.hpp"

namespace ddp::tools::doctor {

void collect_slurm(NodeFacts& node, const base::Environment& environment, Deadline deadline) {
  if (!environment.has("SLURM_JOB_ID")) return;
  const ProgramOutput said = run_program({.command = {"srun", "--version"}, .clean = false, .errors = false}, deadline);
  if (said.status != 0) return;
  const std::string line = said.text.substr(0, said.text.find('\n'));  // "slurm-wlm 22.05.8"
  const auto begin = line.find_last_of(' ');
  constexpr std::string_view kLetters = "0123456789.";
  if (begin == std::string::npos || begin + 1 == line.size()) return;
  const std::string_view version = std::string_view(line).substr(begin + 1);
  node.slurm_version = version.substr(0, version.find_first_not_of(kLetters));
}

}  // namespace ddp::tools::doctor
