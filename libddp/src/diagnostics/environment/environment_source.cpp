// Where a process's variables are read: its memory, /proc, and the files that NCCL reads.
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <set>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "diagnostics/environment/nccl_file.hpp"
#include "diagnostics/environment/rank_environment.hpp"

namespace ddp::diagnostics {
namespace {

// Behind the path in /proc/PID/maps, when the file was replaced after it was loaded.
constexpr std::string_view kDeleted = " (deleted)";

std::optional<std::string> read_proc(const std::string& path) { return base::read_file(path); }

/// Where NCCL looks for .nccl.conf: the password file, from 2.30.3 on HOME.
std::string home_for(const NcclFile& nccl, const base::Environment& environment) {
  std::array<int, 3> version{};
  std::sscanf(nccl.version.c_str(), "%d.%d.%d", &version[0], &version[1], &version[2]);  // NOLINT(cert-err34-c)
  const auto home = environment.raw("HOME");
  const bool by_home = nccl.version.empty() || version >= std::array{2, 30, 3};
  return by_home ? base::home_folder(environment) : base::home_by_password_file().value_or(home.value_or(""));
}

NcclFile nccl_of(const base::NcclSurroundings& surroundings, const std::string& path) {
  if (path.empty()) return find_nccl(surroundings);
  NcclFile file = scan_nccl(path);
  file.found = "--nccl";
  add_plugins(file, surroundings);
  return file;
}

/// A program that shows its state in ps(1) writes over its first environment.
std::optional<Variables> believable(Variables at_exec, const Variables& now) {
  const auto known = [&](const auto& each) { return now.contains(each.first); };
  if (!now.empty() && std::none_of(at_exec.begin(), at_exec.end(), known)) return std::nullopt;
  return at_exec;
}

}  // namespace

Variables parse_environ(std::string_view block) {
  Variables variables;
  while (!block.empty()) {
    const std::string_view line = block.substr(0, block.find('\0'));
    block.remove_prefix(std::min(line.size() + 1, block.size()));
    const auto equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    variables.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return variables;
}

EnvironmentSource EnvironmentSource::process(const std::string& nccl_path, const base::NcclSurroundings& surroundings) {
  const auto environment = base::Environment::process();
  EnvironmentSource source{.now = environment.variables()};
  if (const auto block = read_proc("/proc/self/environ"))
    source.at_exec = believable(parse_environ(*block), source.now);
  source.nccl = nccl_of(surroundings, nccl_path);
  source.files = base::read_nccl_conf(environment, home_for(source.nccl, environment));
  return source;
}

EnvironmentSource EnvironmentSource::of_process(int pid, const std::string& nccl_path) {
  const std::string folder = fmt::format("/proc/{}/", pid);
  errno = 0;
  const auto block = read_proc(folder + "environ");
  if (!block) {
    throw base::system_error(fmt::format("reading the environment of process {}", pid), errno == 0 ? EACCES : errno,
                             "is it running, and yours?");
  }
  const base::Environment environment{parse_environ(*block)};
  EnvironmentSource source{.now = environment.variables(), .at_exec = environment.variables()};
  // Of a process in a container, the files are there, too.
  base::NcclSurroundings surroundings{.environment = environment, .root = folder + "root"};
  std::set<std::string> objects;
  std::ifstream maps(folder + "maps");
  for (std::string line; std::getline(maps, line);) {
    const auto path = line.find('/');
    if (path == std::string::npos) continue;
    line.erase(0, path);
    if (line.ends_with(kDeleted)) line.resize(line.size() - kDeleted.size());
    objects.insert(line);
  }
  surroundings.loaded.assign(objects.begin(), objects.end());
  if (const auto arguments = read_proc(folder + "cmdline"))
    surroundings.program = arguments->substr(0, arguments->find('\0'));
  source.nccl = nccl_of(surroundings, nccl_path);
  source.files =
      base::read_nccl_conf(environment, home_for(source.nccl, environment), base::kNodeConf, surroundings.root);
  return source;
}

}  // namespace ddp::diagnostics
