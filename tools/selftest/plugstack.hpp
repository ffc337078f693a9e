// Finds libddp's plugin in Slurm's plugstack.conf, as Slurm reads it on this host.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

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

}  // namespace ddp::selftest
