#include "selftest/local_checks.hpp"

#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ddp/deadline.hpp>
#include <ddp/version.hpp>

#include "../command/output.hpp"

namespace ddp::selftest {
namespace {

constexpr int kDeepest = 16;  // of files that include each other
constexpr std::string_view kHelper = "helper=";

std::vector<std::filesystem::path> matching(const std::string& pattern) {
  std::vector<std::filesystem::path> files;
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return files;
}

void read_into(const std::filesystem::path& file, int depth, Plugstack& stack) {
  std::ifstream stream(file);
  if (!stream || depth > kDeepest) {
    stack.unreadable.push_back(file);
    return;
  }
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string kind;
    std::string path;
    words >> kind >> path;
    if (kind == "include") {
      if (!path.starts_with('/')) path = (file.parent_path() / path).string();  // as Slurm does
      // A pattern without files is no error to Slurm.
      for (const auto& included : matching(path)) read_into(included, depth + 1, stack);
      std::error_code ignored;
      if (const auto folder = std::filesystem::path(path).parent_path(); !std::filesystem::exists(folder, ignored))
        stack.unreadable.push_back(folder);
    } else if (kind == "optional" || kind == "required") {
      if (std::filesystem::path(path).filename() != "spank_ddp.so") continue;
      PluginLine found{.file = file, .plugin = path};
      for (std::string word; words >> word;) {
        if (word.starts_with(kHelper)) found.helper = word.substr(kHelper.size());
      }
      stack.lines.push_back(std::move(found));
    }
  }
}

}  // namespace

Plugstack read_plugstack(const std::filesystem::path& file) {
  Plugstack stack;
  read_into(file, 0, stack);
  return stack;
}

namespace {

namespace fs = std::filesystem;

// Each program starts, says its version and ends.
constexpr std::chrono::seconds kProgramLimit{10};

using Results = std::vector<LocalResult>;

void add(Results& results, Verdict verdict, const char* check, std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  text.erase(text.find_last_not_of(' ') + 1);
  results.push_back({.verdict = verdict, .check = check, .text = std::move(text)});
}

/// @param clean as the plugin runs ddp-step
tools::ProgramOutput run(const std::vector<std::string>& command, bool clean) {
  return tools::run_program({.command = command, .clean = clean}, Deadline::after(kProgramLimit));
}

/// The value of "NAME = value" or "NAME=value" in lines.
std::string value_of(std::string_view lines, std::string_view name) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    const auto equals = line.find('=');
    if (!line.starts_with(name) || equals == std::string_view::npos) continue;
    if (line.substr(name.size(), equals - name.size()).find_first_not_of(' ') != std::string_view::npos) continue;
    const auto begin = line.find_first_not_of(' ', equals + 1);
    return begin == std::string_view::npos ? std::string() : std::string(line.substr(begin));
  }
  return {};
}

/// Whether @p program starts here and is of this version; adds a result.
void check_program(Results& results, const char* check, const std::string& program, const std::string& name,
                   bool clean) {
  const tools::ProgramOutput said = run({program, "--version"}, clean);
  const std::string expected = name + " " DDP_VERSION_STRING;
  if (said.status != 0) {
    add(results, Verdict::fail, check,
        said.status < 0 ? said.text : fmt::format("{} ended with exit status {}: {}", program, said.status, said.text));
  } else if (said.text.substr(0, said.text.find('\n')) != expected) {
    add(results, Verdict::fail, check,
        fmt::format("{} says '{}', not '{}': install one version", program, said.text.substr(0, said.text.find('\n')),
                    expected));
  } else {
    add(results, Verdict::pass, check, program);
  }
}

/// Loads the plugin as slurmstepd does. Empty, or what is wrong.
std::string load_plugin(const std::string& path, std::string_view slurm_release) {
  void* const plugin = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (plugin == nullptr) {
    const std::string reason = ::dlerror();
    // A build that binds all symbols at once misses Slurm's here, as it does not in Slurm.
    const bool slurms = reason.find("undefined symbol: s") != std::string::npos;
    return slurms ? std::string() : fmt::format("it cannot be loaded: {}", reason);
  }
  const auto* const release = static_cast<const unsigned int*>(::dlsym(plugin, "plugin_version"));
  const auto* const version = static_cast<const char*>(::dlsym(plugin, "spank_ddp_version"));
  if (release == nullptr || version == nullptr) return path + " is not the plugin of this libddp";
  if (std::string_view(version) != DDP_VERSION_STRING)
    return fmt::format("{} is of libddp {}, this program of {}: install one version", path, version,
                       DDP_VERSION_STRING);
  const std::string built_for = fmt::format("{}.{:02}", *release >> 16 & 0xff, *release >> 8 & 0xff);
  if (!slurm_release.empty() && !slurm_release.starts_with(built_for))
    return fmt::format("{} was built for Slurm {}, and this host has {}", path, built_for, slurm_release);
  return {};
}

void check_plugin(Results& results, bool expected) {
  const Verdict missing = expected ? Verdict::fail : Verdict::warning;
  const tools::ProgramOutput config = run({"scontrol", "show", "config"}, false);
  std::string file = value_of(config.text, "PlugStackConfig");
  if (file.empty()) {
    const char* const own = std::getenv("SLURM_CONF");
    file = fs::path(own != nullptr ? own : "/etc/slurm/slurm.conf").parent_path() / "plugstack.conf";
  }
  const Plugstack stack = read_plugstack(file);
  if (stack.lines.empty()) {
    std::string text =
        fmt::format("{} and what it includes do not name spank_ddp.so: srun --ddp does not work here", file);
    for (const auto& each : stack.unreadable) text += fmt::format("; {} cannot be read", each.string());
    add(results, missing, "plugin", std::move(text));
    return;
  }
  std::string release = run({"scontrol", "--version"}, false).text;  // "slurm-wlm 22.05.8"
  release = release.substr(std::min(release.size(), release.find(' ') + 1));
  release.erase(std::min(release.size(), release.find_first_of("\n ")));
  if (release.find_first_not_of("0123456789.-rc") != std::string::npos) release.clear();
  for (const PluginLine& line : stack.lines) {
    const std::string path = line.plugin.is_absolute()
                                 ? line.plugin.string()
                                 : (fs::path(value_of(config.text, "PluginDir")) / line.plugin).string();
    std::error_code error;
    if (const std::string wrong = load_plugin(path, release); !wrong.empty()) {
      add(results, Verdict::fail, "plugin", fmt::format("{} ({})", wrong, line.file.string()));
    } else {
      add(results, Verdict::pass, "plugin", fmt::format("{} ({})", path, line.file.string()));
    }
    const fs::path beside = fs::weakly_canonical(path, error).parent_path() / DDP_STEP_FROM_PLUGIN;
    check_program(results, "ddp-step", line.helper.empty() ? beside.lexically_normal().string() : line.helper,
                  "ddp-step", true);
  }
}

void check_library(Results& results) {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&ddp::version), &info) == 0 || info.dli_fname == nullptr) return;
  const std::string own = info.dli_fname;
  if (std::string_view(ddp::version()) != DDP_VERSION_STRING) {
    add(results, Verdict::fail, "libraries",
        fmt::format("{} is of version {}, this program of {}: install one", own, ddp::version(), DDP_VERSION_STRING));
  } else {
    add(results, Verdict::pass, "libraries", own);
  }
}

}  // namespace

std::vector<LocalResult> check_this_node(bool expect_plugin, const fs::path& program) {
  Results results;
  check_program(results, "ddprun", (program.parent_path() / "ddprun").string(), "ddprun (libddp)", false);
  check_library(results);
  check_plugin(results, expect_plugin);
  return results;
}

std::string format_local(const std::string& host, const std::vector<LocalResult>& results) {
  std::string table;
  for (const LocalResult& result : results) {
    const char* const word = result.verdict == Verdict::pass      ? "PASS"
                             : result.verdict == Verdict::warning ? "WARN"
                                                                  : "FAIL";
    table += fmt::format("{}  {}  {:<9}  {}\n", host, word, result.check, result.text);
  }
  return table;
}

}  // namespace ddp::selftest
