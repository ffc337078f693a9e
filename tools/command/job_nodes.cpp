#include "command/job_nodes.hpp"

#include <pwd.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "diagnostics/stacks/stack_tools.hpp"

namespace ddp::tools {
namespace {

constexpr std::string_view kWord = "ddp-info-helper";
constexpr std::size_t kDigits = 800;  // beside a host name of at most 64 characters and three numbers
constexpr std::size_t kMostLines = 100'000;

int hex_digit(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

std::optional<Bytes> bytes_of(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  Bytes bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const int high = hex_digit(digits[i]);
    const int low = hex_digit(digits[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return bytes;
}

}  // namespace

std::string helper_lines(std::string_view host, std::span<const std::byte> message) {
  std::string digits;
  for (const std::byte each : message) {
    digits += "0123456789abcdef"[std::to_integer<unsigned>(each) >> 4U];
    digits += "0123456789abcdef"[std::to_integer<unsigned>(each) & 15U];
  }
  const std::size_t count = (digits.size() + kDigits - 1) / kDigits;
  std::string lines;
  for (std::size_t i = 0; i < count; ++i) {
    lines += fmt::format("{} {}:{} {} {} {}\n", kWord, host, ::getpid(), i, count,
                         std::string_view(digits).substr(i * kDigits, kDigits));
  }
  return lines;
}

void HelperLines::add(std::string_view line) {
  std::istringstream words{std::string(line)};
  std::string word;
  std::string from;
  std::size_t number = 0;
  std::size_t count = 0;
  std::string digits;
  if (!(words >> word >> from >> number >> count >> digits) || word != kWord || count > kMostLines) return;
  Host& host = hosts_[from];
  host.wanted = count;
  if (number != host.lines) return;  // one before it is lost: the host stays incomplete
  ++host.lines;
  host.digits += digits;
}

std::vector<Bytes> HelperLines::take(std::vector<std::string>& notes) {
  std::vector<Bytes> found;
  for (const auto& [from, host] : hosts_) {
    if (host.lines != host.wanted) {
      notes.push_back(fmt::format("of {} only {} of {} lines came", from, host.lines, host.wanted));
      continue;
    }
    if (std::optional<Bytes> message = bytes_of(host.digits)) {
      found.push_back(std::move(*message));
    } else {
      notes.push_back(fmt::format("a line of {} is torn", from));
    }
  }
  hosts_.clear();
  return found;
}

}  // namespace ddp::tools

extern char** environ;

namespace ddp::tools {
namespace {

[[noreturn]] void refuse(ErrorCode code, const std::string& job, std::string cause, std::string hint) {
  throw Error{{.code = code,
               .attempted = fmt::format("asking the nodes of job {}", job),
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

std::optional<std::string> find_program(const std::string& program) {
  std::istringstream folders{base::Environment::process().raw("PATH").value_or("/bin:/usr/bin")};
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string path = folder + "/" + program;
    if (!folder.empty() && ::access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

std::string path_of(const std::string& program, const std::string& job) {
  if (auto path = find_program(program)) return *std::move(path);
  refuse(ErrorCode::unavailable, job, fmt::format("PATH has no {}", program),
         "a number that is not a process of this host is taken for a job of Slurm");
}

/// Without what Slurm told a step or script around this process, which srun would obey.
std::vector<std::string> environment_of_srun() {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string_view text{*line};
    const bool step = text.starts_with("SLURM_") && !text.starts_with("SLURM_CONF=");
    if (!step && !text.starts_with("PMIX_") && !text.starts_with("PMI_")) lines.emplace_back(text);
  }
  return lines;
}

std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  std::replace_if(
      line.begin(), line.end(), [](unsigned char letter) { return letter < ' ' || letter == 0x7f; }, '?');
  return line;
}

}  // namespace

bool has_slurm() { return find_program("squeue").has_value(); }

int require_running_job(const std::string& job, Deadline deadline) {
  const auto said = diagnostics::run_tool(
      {path_of("squeue", job), "--noheader", "--jobs=" + job.substr(0, job.find('.')), "--format=%D %U %T"},
      environment_of_srun(), deadline);
  std::istringstream answer{said.out};
  int nodes = 0;
  uid_t user = 0;
  std::string state;
  if (!(answer >> nodes >> user >> state)) {
    refuse(ErrorCode::not_found, job,
           said.err.empty() ? "Slurm knows no such job of this user" : fmt::format("squeue: {}", first_line(said.err)),
           "squeue --me lists the jobs; a process of another host is found there only");
  }
  if (::geteuid() != 0 && user != ::geteuid()) {
    const passwd* const entry = ::getpwuid(user);
    refuse(ErrorCode::unavailable, job,
           fmt::format("it belongs to {}", entry == nullptr ? fmt::format("user {}", user) : entry->pw_name),
           "users see their own jobs only");
  }
  if (state != "RUNNING")
    refuse(ErrorCode::unavailable, job, fmt::format("it is {}", state), "only a running job has ranks to ask");
  return nodes;
}

NodeAnswers ask_nodes_of_job(const std::string& job, std::vector<std::string> helper, Deadline deadline) {
  NodeAnswers answers;
  answers.nodes = require_running_job(job, deadline);
  std::vector<std::string> command{path_of("srun", job),
                                   "--jobid=" + job.substr(0, job.find('.')),
                                   "--overlap",
                                   "--mpi=none",
                                   "--cpu-bind=quiet,none",
                                   "--kill-on-bad-exit=0",
                                   "--wait=0",
                                   "--quiet",
                                   "--time=1",
                                   "--input=none",
                                   fmt::format("--nodes={}", answers.nodes),
                                   fmt::format("--ntasks={}", answers.nodes),
                                   "--ntasks-per-node=1",
                                   std::filesystem::read_symlink("/proc/self/exe").string()};
  command.insert(command.end(), std::make_move_iterator(helper.begin()), std::make_move_iterator(helper.end()));
  const auto said = diagnostics::run_tool(std::move(command), environment_of_srun(), deadline);
  std::istringstream output{said.out};
  HelperLines lines;
  for (std::string line; std::getline(output, line);) lines.add(line);
  answers.messages = lines.take(answers.notes);
  const int silent = answers.nodes - static_cast<int>(answers.messages.size());
  if (silent > 0) {
    answers.notes.push_back(fmt::format("{} of {} nodes did not answer{}{}", silent, answers.nodes,
                                        said.in_time ? "" : " in time",
                                        said.err.empty() ? "" : ": " + first_line(said.err)));
  }
  return answers;
}

}  // namespace ddp::tools
