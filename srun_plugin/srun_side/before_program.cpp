#include "srun_side/before_program.hpp"

#include <chrono>
#include <csignal>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "srun_side/ddp_step_client.hpp"

namespace ddp::srun_plugin {
namespace {

// A little more than ddp-info waits for nodes that do not take part.
constexpr std::chrono::seconds kLimit{75};
// Of `ddp-info before`: the nodes have errors.
constexpr int kMustNotStart = 42;
// The step is being ended, because another rank's nodes have errors, say.
constexpr int kStepEnds = 128 + SIGTERM;

}  // namespace

std::string encode(const BeforeProgram& before) { return fmt::format("{:d}:{}", before.doctor, before.dump); }

BeforeProgram parse_before(std::string_view text) {
  if (!text.starts_with("0:") && !text.starts_with("1:")) return {};
  return {.doctor = text.front() == '1', .dump = std::string(text.substr(2))};
}

bool run_before(const std::string& program, const BeforeProgram& before, const std::string& name,
                const base::Environment& environment) {
  const Deadline deadline = Deadline::after(kLimit);
  const std::string path = find_ddp_step(program);
  std::vector<std::string> arguments{"before"};
  if (before.doctor) arguments.emplace_back("--doctor");
  if (!before.dump.empty()) arguments.insert(arguments.end(), {"--dump", before.dump});
  if (!name.empty()) arguments.insert(arguments.end(), {"--program", name});
  std::string block;
  for (const auto& [variable, value] : environment.variables()) block += variable + "=" + value + '\0';
  DdpStepClient step(path, arguments, {});
  step.send(base::to_bytes(block), deadline);
  step.close_input();
  step.read_all(deadline);
  const int status = step.finish(deadline);
  if (status == 0 || status == kMustNotStart || status == kStepEnds) return status == 0;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "examining this step before its program starts",
               .cause = fmt::format("{} ended with exit status {}", path, status),
               .hint = "are ddp-step and ddp-info of the same package?"}};
}

}  // namespace ddp::srun_plugin
