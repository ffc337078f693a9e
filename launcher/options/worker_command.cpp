#include "options/worker_command.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/unique_fd.hpp"
#include "cli/option_values.hpp"
#include "options/string_template.hpp"
#include "outcome/exit_error.hpp"

namespace ddp::launcher {
namespace {

constexpr std::string_view kMark = "\xef\xbb\xbf";

/// As much of the file as the kernel reads (BINPRM_BUF_SIZE).
std::string head_of(const std::string& path) {
  std::array<char, 256> bytes{};
  const base::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
  const ssize_t size = file ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
  return size > 0 ? std::string(bytes.data(), static_cast<std::size_t>(size)) : std::string{};
}

bool is_missing(const std::string& file) {
  return ::access(file.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

std::string_view without_blanks(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  return text;
}

std::string line_end_hint(const std::string& path) {
  return fmt::format("its lines end as on Windows, with a carriage return (\\r): sed -i 's/\\r$//' {}",
                     cli::printable(path));
}

}  // namespace

std::string script_line_fault(const std::string& path) {
  const std::string head = head_of(path);
  if (head.starts_with(kMark) && std::string_view(head).substr(kMark.size()).starts_with("#!"))
    return fmt::format("a byte order mark stands before its '#!': sed -i '1s/^\\xef\\xbb\\xbf//' {}",
                       cli::printable(path));
  if (!head.starts_with("#!")) return {};
  const auto end = head.find('\n');
  if (end == std::string::npos) return {};  // the kernel truncates it
  const std::string_view line = without_blanks(std::string_view(head).substr(2, end - 2));
  const auto blank = line.find_first_of(" \t");
  const std::string interpreter{line.substr(0, blank)};
  if (interpreter.empty()) return {};
  if (is_missing(interpreter)) {
    if (interpreter.ends_with('\r')) return line_end_hint(path);
    return fmt::format("install {} on this host, or correct the line", cli::printable(interpreter));
  }
  // env looks for the name including the carriage return; other programs, as perl, may take it for a blank.
  const bool env = interpreter == "env" || interpreter.ends_with("/env");
  return env && line.ends_with('\r') ? line_end_hint(path) : std::string{};
}

namespace {

/// 0 when @p path is a file that this user may execute, else an errno value.
int execution_obstacle(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return errno;
  if (S_ISDIR(facts.st_mode)) return EISDIR;
  if (::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) != 0) return errno;
  return 0;
}

bool means_missing(int number) { return number == ENOENT || number == ENOTDIR; }

/// Explains names that another program has broken.
std::string hint_for_name(const std::string& name) {
  if (name.ends_with('\r'))
    return "the name ends in a carriage return: the lines of the script that calls ddprun end as on Windows (sed -i "
           "'s/\\r$//' SCRIPT)";
  for (const char* dash : {"\xe2\x80\x93", "\xe2\x80\x94", "\xe2\x88\x92"}) {
    if (name.starts_with(dash))
      return "it begins with a typographic dash instead of '-', as documents have it: type it anew";
  }
  return {};
}

[[noreturn]] void reject_missing(const std::string& name, std::string cause, int number, std::string hint) {
  if (std::string better = hint_for_name(name); !better.empty()) hint = std::move(better);
  throw ExitError{kExitNotFound,
                  {.code = ErrorCode::not_found,
                   .attempted = fmt::format("looking for the program '{}'", cli::printable(name)),
                   .cause = std::move(cause),
                   .native = base::errno_name(number),
                   .hint = std::move(hint)}};
}

[[noreturn]] void reject_unusable(const std::string& path, int number) {
  const bool python = path.ends_with(".py");
  std::string hint = number == EISDIR   ? "give the path of a file"
                     : python           ? fmt::format("start it with an interpreter: python {}", path)
                     : number == EACCES ? fmt::format("make it executable: chmod +x {}", path)
                                        : std::string{};
  throw ExitError{kExitNotExecutable,
                  {.code = ErrorCode::invalid_argument,
                   .attempted = fmt::format("checking the program '{}'", path),
                   .cause = number == EISDIR ? "it is a folder"
                                             : fmt::format("it cannot be executed: {}", base::errno_text(number)),
                   .native = base::errno_name(number),
                   .hint = std::move(hint)}};
}

}  // namespace

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.empty()) reject_missing(name, "the name is empty", ENOENT, "give the name of a program");
  if (name.find('/') != std::string::npos) {
    const int obstacle = execution_obstacle(name);
    if (means_missing(obstacle)) reject_missing(name, "there is no such file", obstacle, "check the path");
    if (obstacle != 0) reject_unusable(name, obstacle);
    return name;
  }

  std::string unusable;
  int unusable_number = 0;
  std::string_view rest = search_path;
  for (bool more = true; more;) {
    const auto colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    more = colon != std::string_view::npos;
    if (more) rest.remove_prefix(colon + 1);
    std::string path = folder.empty() ? "./" + name : fmt::format("{}/{}", folder, name);
    const int obstacle = execution_obstacle(path);
    if (obstacle == 0) return path;
    if (obstacle != EISDIR && !means_missing(obstacle) && unusable.empty()) {
      unusable = std::move(path);
      unusable_number = obstacle;
    }
  }
  if (!unusable.empty()) reject_unusable(unusable, unusable_number);
  const bool here = ::access(name.c_str(), F_OK) == 0;
  reject_missing(name, "no folder of PATH has it", ENOENT,
                 !here ? "check the name, or give its path"
                 : name.ends_with(".py")
                     ? fmt::format("to run the script of that name in this folder, write: python {}", name)
                     : fmt::format("to run the file of that name in this folder, write ./{}", name));
}

// Distinguishes programs from Python scripts by their files, and finds the interpreter.

namespace {

/// A byte order mark hides the "#!" from the kernel.
constexpr std::string_view kMarkedScript = "\xef\xbb\xbf#!";

/// With -c, sys.argv[0] is "-c"; the script must see its own name there, as with torchrun. run_path leaves SystemExit
/// to the interpreter, which turns it into the exit status.
constexpr const char* kRunPath =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

std::string search_path(const base::Environment& environment) {
  return environment.raw("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
}

std::string find_interpreter(const base::Environment& environment) {
  const std::string path = search_path(environment);
  if (const auto chosen = environment.raw("PYTHON_EXEC"); chosen && !chosen->empty()) {
    try {
      return find_program(*chosen, path);
    } catch (const ExitError& error) {
      ErrorDetail detail = error.detail();
      detail.attempted = fmt::format("looking for the Python interpreter '{}'", *chosen);
      detail.hint = "correct or unset PYTHON_EXEC";
      throw ExitError{error.exit_status(), std::move(detail)};
    }
  }
  for (const char* name : {"python3", "python"}) {
    try {
      return find_program(name, path);
    } catch (const ExitError&) {  // the next name may exist
    }
  }
  throw ExitError{kExitNotFound,
                  {.code = ErrorCode::not_found,
                   .attempted = "looking for the Python interpreter",
                   .cause = "no folder of PATH has python3 or python",
                   .hint = "load Python's environment, or set PYTHON_EXEC; --no-python executes PROGRAM itself"}};
}

[[noreturn]] void reject_file(const std::string& name, std::string cause, int number, std::string hint) {
  throw ExitError{kExitNotExecutable,
                  {.code = ErrorCode::invalid_argument,
                   .attempted = fmt::format("checking the program '{}'", name),
                   .cause = std::move(cause),
                   .native = number == 0 ? std::string{} : base::errno_name(number),
                   .hint = std::move(hint)}};
}

[[noreturn]] void reject_folder(const std::string& name) {
  reject_file(name, "it is a folder", EISDIR, "give the path of a file; Python runs folders that have a __main__.py");
}

/// The first line of a file, or enough of it to recognize the file's kind.
std::string first_bytes(const std::string& name) {
  // Linux reads 256 bytes of a "#!" line, too (BINPRM_BUF_SIZE).
  std::array<char, 256> bytes;
  const base::UniqueFd file{::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
  const ssize_t size = file ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
  if (size < 0) reject_file(name, fmt::format("it cannot be read: {}", base::errno_text(errno)), errno, "");
  return {bytes.data(), static_cast<std::size_t>(size)};
}

bool names_python(std::string_view bytes) {
  return bytes.substr(0, bytes.find('\n')).find("python") != std::string_view::npos;
}

enum class ProgramKind { native, script, elsewhere };

/// The kind of @p name on this node; elsewhere: there is no such file here.
ProgramKind kind_of(const std::string& name) {
  struct stat facts {};
  if (::stat(name.c_str(), &facts) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return ProgramKind::elsewhere;
    reject_file(name, fmt::format("it cannot be examined: {}", base::errno_text(errno)), errno, "");
  }
  if (S_ISDIR(facts.st_mode)) {
    if (::access(fmt::format("{}/__main__.py", name).c_str(), R_OK) == 0) return ProgramKind::script;
    if (name.find('/') == std::string::npos) return ProgramKind::elsewhere;  // PATH may have a program of that name
    reject_folder(name);
  }
  if (!S_ISREG(facts.st_mode)) return ProgramKind::script;  // only the interpreter may read a pipe, and only once
  const bool executable = ::faccessat(AT_FDCWD, name.c_str(), X_OK, AT_EACCESS) == 0;
  const bool readable = ::faccessat(AT_FDCWD, name.c_str(), R_OK, AT_EACCESS) == 0;
  if (executable && !readable) return ProgramKind::native;
  const std::string head = first_bytes(name);
  const std::string_view bytes =
      std::string_view(head).substr(head.starts_with(kMarkedScript) ? kMarkedScript.size() - 2 : 0);
  const bool elf = bytes.starts_with("\177ELF");
  const bool other_script = bytes.starts_with("#!") && !names_python(bytes) && !name.ends_with(".py");
  if (!elf && !other_script) return ProgramKind::script;
  if (!executable)
    reject_file(name,
                elf ? "it is a program that cannot be executed" : "it is not a Python script and cannot be executed",
                EACCES, fmt::format("make it executable: chmod +x {}", name));
  return ProgramKind::native;
}

/// A program of PATH needs no slash; a file of this folder does, since PATH may have one of the same name.
std::string path_of(const std::string& name) { return name.find('/') == std::string::npos ? "./" + name : name; }

bool is_interpreter(std::string_view program) {
  const auto slash = program.rfind('/');
  return program.substr(slash == std::string_view::npos ? 0 : slash + 1).starts_with("python");
}

/// Helps a user whose modules belong to another Python.
std::string interpreter_text(const std::string& path, std::string_view origin, const base::Environment& environment) {
  std::string text = fmt::format("{} ({}", path, origin);
  bool environments = false;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string folder = environment.raw(name).value_or("");
    if (folder.empty()) continue;
    environments = true;
    text += fmt::format("; {}={}{}", name, folder, path.starts_with(folder + "/") ? "" : ", which has another one");
  }
  return text + (environments ? ")" : "; VIRTUAL_ENV is not set)");
}

/// Where the script stands, as in "python -u train.py"; 0 if the command names none, or is one.
std::size_t script_position(const std::vector<std::string>& command) {
  if (!is_interpreter(command.front())) return 0;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (word == "-c") break;
    if (word == "-W" || word == "-X") {
      ++i;  // takes a value
    } else if (!word.starts_with('-')) {
      return i;
    }
  }
  return 0;
}

/// The user's program and arguments, with what --pass-local-rank adds, for arguments_of() to fill.
std::vector<std::string> words_of(const LaunchOptions& options) {
  std::vector<std::string> words = options.command;
  if (!options.pass_local_rank) return words;
  const auto behind = static_cast<std::ptrdiff_t>(script_position(words)) + 1;
  words.insert(words.begin() + behind, "--local-rank=${local_rank}");
  return words;
}

WorkerCommand with_interpreter(const LaunchOptions& options, const base::Environment& environment,
                               std::vector<std::string> interpreter_options) {
  WorkerCommand worker{.path = find_interpreter(environment), .display = options.command.front(), .python = true};
  const bool chosen = !environment.raw("PYTHON_EXEC").value_or("").empty();
  worker.interpreter = interpreter_text(worker.path, chosen ? "from PYTHON_EXEC" : "from PATH", environment);
  worker.arguments.push_back(worker.path);
  for (std::string& option : interpreter_options) worker.arguments.push_back(std::move(option));
  for (std::string& word : words_of(options)) worker.arguments.push_back(std::move(word));
  return worker;
}

WorkerCommand directly(const LaunchOptions& options, std::string path, const base::Environment& environment) {
  if (std::string fault = script_line_fault(path); !fault.empty())
    reject_file(path, "its '#!' line leads to no interpreter", ENOENT, std::move(fault));
  const std::string& name = options.command.front();
  const bool python = is_interpreter(name);
  const char* const origin = name.find('/') == std::string::npos ? "from PATH" : "as the command says";
  return {.path = path,
          .arguments = words_of(options),
          .display = options.command[script_position(options.command)],
          .python = python,
          .interpreter = python ? interpreter_text(path, origin, environment) : std::string{}};
}

/// Reports once what the interpreter would report on each rank.
void check_script(const std::string& name) {
  if (::faccessat(AT_FDCWD, name.c_str(), R_OK, AT_EACCESS) == 0) return;
  const int number = errno;
  if (number == ENOENT || number == ENOTDIR) find_program(path_of(name), {});  // throws
  reject_file(name, fmt::format("it cannot be read: {}", base::errno_text(number)), number, "");
}

/// A missing script was hardly meant to be a program of PATH.
std::string find_elsewhere(const std::string& name, const base::Environment& environment) {
  try {
    return find_program(name, search_path(environment));
  } catch (const ExitError& error) {
    if (error.exit_status() != kExitNotFound) throw;
    if (::access(name.c_str(), F_OK) == 0) reject_folder(name);  // what is here and was not taken is a folder
    if (!name.ends_with(".py")) throw;
    ErrorDetail detail = error.detail();
    detail.cause = "there is no such file";
    detail.hint = "check the path";
    throw ExitError{kExitNotFound, std::move(detail)};
  }
}

WorkerCommand resolve_by_file(const LaunchOptions& options, const base::Environment& environment) {
  const std::string& name = options.command.front();
  switch (kind_of(name)) {
    case ProgramKind::native: return directly(options, path_of(name), environment);
    case ProgramKind::elsewhere: return directly(options, find_elsewhere(name, environment), environment);
    case ProgramKind::script: break;
  }
  return with_interpreter(options, environment, {"-u"});
}

WorkerCommand resolve_program(const LaunchOptions& options, const base::Environment& environment) {
  const std::string& name = options.command.front();
  switch (options.mode) {
    case ProgramMode::module: return with_interpreter(options, environment, {"-u", "-m"});
    case ProgramMode::no_python: return directly(options, find_program(name, search_path(environment)), environment);
    case ProgramMode::run_path:
      check_script(name);
      return with_interpreter(options, environment, {"-u", "-c", kRunPath});
    case ProgramMode::automatic: break;
  }
  return resolve_by_file(options, environment);
}

}  // namespace

WorkerCommand resolve_command(const LaunchOptions& options, const base::Environment& environment) {
  try {
    return resolve_program(options, environment);
  } catch (const ExitError& error) {
    if (error.exit_status() != kExitNotFound || options.program_hint.empty()) throw;
    ErrorDetail detail = error.detail();
    detail.hint = options.program_hint;
    throw ExitError{kExitNotFound, std::move(detail)};
  }
}

std::optional<std::size_t> program_position(const WorkerCommand& command) {
  constexpr std::string_view kPlainFlags = "bBdEIOPqRsSuv";
  const std::vector<std::string>& words = command.arguments;
  for (std::size_t i = 1; command.python && i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "-m" || word == "-c") return i + 1 < words.size() ? std::optional{i} : std::nullopt;
    if (!word.starts_with('-')) return word.ends_with(".pyc") ? std::nullopt : std::optional{i};
    if (word == "-W" || word == "-X") {
      ++i;  // takes a value
    } else if (!word.starts_with("-W") && !word.starts_with("-X") &&
               (word.size() < 2 || word.find_first_not_of(kPlainFlags, 1) != std::string::npos)) {
      break;
    }
  }
  return std::nullopt;
}

std::vector<std::string> arguments_of(const WorkerCommand& command, int local_rank) {
  const auto value_of = [local_rank](std::string_view name) {
    return name == "local_rank" ? std::optional{std::to_string(local_rank)} : std::nullopt;
  };
  std::vector<std::string> arguments = command.arguments;
  for (std::size_t i = 1; i < arguments.size(); ++i) arguments[i] = fill_template(arguments[i], value_of);
  return arguments;
}

}  // namespace ddp::launcher
