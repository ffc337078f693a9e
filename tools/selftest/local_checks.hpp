// ddp-selftest --local: whether what users start is installed on this node, and whether Slurm's plugstack.conf here
// names the plugin.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "selftest/verdict.hpp"

namespace ddp::selftest {

struct PluginLine {
  std::filesystem::path file;    ///< the configuration file that it stands in
  std::filesystem::path plugin;  ///< as it is written there
  std::string helper{};          ///< of helper=; empty: none
};

struct Plugstack {
  std::vector<PluginLine> lines;                  ///< those of spank_ddp.so
  std::vector<std::filesystem::path> unreadable;  ///< files that it names, and folders of them that are not there
};

/// Reads @p file and what it includes.
Plugstack read_plugstack(const std::filesystem::path& file);

struct LocalResult {
  Verdict verdict = Verdict::pass;
  std::string check;  ///< "plugin"
  std::string text;   ///< what was found, or what is wrong
};

/// @param expect_plugin fail where the plugin for srun is not configured. @param program of this process, beside which
/// the installation is.
std::vector<LocalResult> check_this_node(bool expect_plugin, const std::filesystem::path& program);

/// "HOST  FAIL  plugin    TEXT", a line each.
std::string format_local(const std::string& host, const std::vector<LocalResult>& results);

}  // namespace ddp::selftest
