#include "options/program_lookup.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "options/option_values.hpp"
#include "outcome/exit_error.hpp"

namespace ddp::launcher {
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

/// For names that another program has spoilt.
std::string hint_for_name(const std::string& name) {
  if (name.ends_with('\r'))
    return "the name ends in a carriage return: the lines of the script that calls ddprun end as on Windows (sed -i "
           "'s/\\r$//' SCRIPT)";
  for (const char* dash : {"\xe2\x80\x93", "\xe2\x80\x94", "\xe2\x88\x92"}) {
    if (name.starts_with(dash)) return "it begins with a dash that is no '-', as documents have it: type it anew";
  }
  return {};
}

[[noreturn]] void reject_missing(const std::string& name, std::string cause, int number, std::string hint) {
  if (std::string better = hint_for_name(name); !better.empty()) hint = std::move(better);
  throw ExitError{kExitNotFound,
                  {.code = ErrorCode::not_found,
                   .attempted = fmt::format("looking for the program '{}'", printable(name)),
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

}  // namespace ddp::launcher
