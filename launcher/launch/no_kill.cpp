#include "launch/no_kill.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"

namespace ddp::launcher {
namespace {

// A script's options end with its first command.
constexpr std::size_t kMostScriptLines = 1000;

void warn_of_kill(const std::string& text) {
  if (!text.empty()) base::write_stderr_line(fmt::format("ddprun: warning: {}", text));
}

/// As getopt reads it: an abbreviation, or a letter, maybe behind others that take no value ("-Qk").
bool is_no_kill(std::string_view word) {
  if (word.starts_with("--no-k")) return !word.ends_with("=off");
  return word.starts_with("-") && word.find_first_not_of("-QHIkvs") == std::string_view::npos &&
         word.find('k') != std::string_view::npos;
}

bool any_no_kill(const std::string& line) {
  std::istringstream words{line};
  return std::any_of(std::istream_iterator<std::string>{words}, std::istream_iterator<std::string>{}, is_no_kill);
}

std::string file_text(const std::string& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{}};
}

/// The words of the salloc above this process, whose command it is or started; nothing: none is visible.
std::optional<std::vector<std::string>> salloc_above() {
  for (pid_t pid = ::getppid(); pid > 1;) {
    const std::string stat = file_text(fmt::format("/proc/{}/stat", pid));  // "7 (salloc) S 6 ..."
    const auto end = stat.rfind(')');
    if (end == std::string::npos) return std::nullopt;
    if (stat.find("(salloc)") != std::string::npos) {
      std::istringstream line{file_text(fmt::format("/proc/{}/cmdline", pid))};
      std::vector<std::string> words;
      for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
      return words;
    }
    std::istringstream rest{stat.substr(end + 1)};
    std::string state;
    if (!(rest >> state >> pid)) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::string warning_of_salloc(const std::vector<std::string>& words) {
  // Behind the name of the command are its own options.
  const auto command =
      std::find_if(words.begin(), words.end(), [](const std::string& word) { return word.ends_with("ddprun"); });
  if (std::any_of(words.begin(), command, is_no_kill)) return {};
  return "Slurm ends this allocation when one of its nodes fails: give --no-kill to salloc";
}

std::string warning_of_sbatch(const std::vector<std::string>& lines) {
  if (lines.empty() || lines.front().find(" BatchFlag=1") == std::string::npos) return {};
  std::string said;  // since Slurm 25.05
  if (const auto begin = lines.front().find(" SubmitLine="); begin != std::string::npos)
    said = lines.front().substr(begin);
  if (any_no_kill(said)) return {};
  bool wrapped = false;
  for (const std::string& line : lines) {
    if (line.starts_with("#SBATCH") && any_no_kill(line.substr(0, line.find('#', 1)))) return {};
    wrapped = wrapped || line.find("created by sbatch --wrap") != std::string::npos;
  }
  const char* const what = "Slurm ends this job when one of its nodes fails";
  if (wrapped || lines.size() == 1)
    return said.empty() ? std::string{} : fmt::format("{}: give --no-kill to sbatch", what);
  return fmt::format("{}{}: add '#SBATCH --no-kill' to the batch script", what,
                     said.empty() ? ", unless sbatch was given --no-kill" : "");
}

NoKillCheck::NoKillCheck(stream::EventLoop& loop, const base::Environment& environment)
    : loop_(loop), environment_(environment), job_(environment.raw("SLURM_JOB_ID").value_or("")) {
  if (environment.has("SALLOC_NO_KILL") || environment.has("SBATCH_NO_KILL")) return;
  if (const auto salloc = salloc_above()) {
    warn_of_kill(warning_of_salloc(*salloc));
    return;
  }
  if (job_.empty() || job_.find_first_not_of("0123456789") != std::string::npos) return;
  ask({"scontrol", "--oneliner", "show", "job", job_});
}

bool NoKillCheck::ask(std::vector<std::string> words) {
  try {
    scontrol_ = HeardProgram{loop_, environment_, std::move(words), Heard::all};
    return true;
  } catch (const Error&) {
    return false;  // what starts the agents will say more
  }
}

void NoKillCheck::time_passed() {
  if (!scontrol_) return;
  const auto take = [this](const std::string& line) {
    if (lines_.size() < kMostScriptLines) lines_.push_back(line);
  };
  scontrol_.read(take);
  const auto end = scontrol_.end(take);
  if (!end) return;
  if (end->shell_status() == 0 && !std::exchange(script_asked_, true) &&
      ask({"scontrol", "write", "batch_script", job_, "-"}))
    return;
  warn_of_kill(warning_of_sbatch(lines_));
}

}  // namespace ddp::launcher
