#include "diagnostics/environment/nccl_plugins.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/library_search.hpp"

namespace ddp::diagnostics {
namespace {

struct PluginKind {
  const char* variable;
  std::string_view file;  ///< without ".so", or "-NAME.so" for a value NAME
};

// NCCL's plugin/plugin_open.cc.
constexpr std::array kKinds{PluginKind{"NCCL_NET_PLUGIN", "libnccl-net"}, PluginKind{"NCCL_GIN_PLUGIN", "libnccl-gin"},
                            PluginKind{"NCCL_TUNER_PLUGIN", "libnccl-tuner"},
                            PluginKind{"NCCL_PROFILER_PLUGIN", "libnccl-profiler"},
                            PluginKind{"NCCL_ENV_PLUGIN", "libnccl-env"}};

/// The files that NCCL tries for a value, the first that is there counts.
std::vector<std::string> tried_for(const PluginKind& kind, const std::string& value) {
  const std::string file{kind.file};
  if (value.empty()) return {file + ".so"};
  return {value, file + "-" + value + ".so"};
}

/// As dlopen(3) takes a name: with a slash it is a path. Empty: it is not there.
std::string find_plugin(const base::NcclSurroundings& surroundings, const std::string& name) {
  if (name.find('/') != std::string::npos) return base::is_file(surroundings.root, name) ? name : std::string{};
  const auto found = base::find_library(surroundings.environment, surroundings.root, name);
  return found ? found->path : std::string{};
}

}  // namespace

std::vector<FoundPlugin> find_plugins(const base::NcclSurroundings& surroundings) {
  std::vector<FoundPlugin> found;
  for (const PluginKind& kind : kKinds) {
    const std::string value = surroundings.environment.raw(kind.variable).value_or("");
    if (value == "none") continue;
    auto words = base::words_of(value, ",");
    if (words.empty()) words.emplace_back();
    for (const std::string& word : words) {
      for (const std::string& name : tried_for(kind, word)) {
        const std::string path = find_plugin(surroundings, name);
        if (path.empty()) continue;
        found.push_back({.variable = kind.variable, .path = path, .by_default = value.empty()});
        break;
      }
    }
  }
  return found;
}

void add_plugins(NcclFile& file, const base::NcclSurroundings& surroundings) {
  std::vector<std::string> paths;
  const auto add = [&](const std::string& path) {
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
  };
  for (const std::string& object : surroundings.loaded) {
    const std::string name = std::filesystem::path(object).filename().string();
    const auto is = [&](const PluginKind& kind) { return name.starts_with(kind.file); };
    if (std::any_of(kKinds.begin(), kKinds.end(), is)) add(object);
  }
  for (const FoundPlugin& plugin : find_plugins(surroundings)) add(plugin.path);
  for (const std::string& path : paths) {
    const NcclFile plugin = scan_nccl(path, surroundings.root);
    file.plugin_names.insert(file.plugin_names.end(), plugin.names.begin(), plugin.names.end());
    file.found += (path == paths.front() ? "; with " : ", ") + path;
  }
}

}  // namespace ddp::diagnostics
