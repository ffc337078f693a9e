#include "collectives/backend_loader.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/backend_file.hpp"
#include "base/env_table.hpp"
#include "collectives/local_backend.hpp"

namespace ddp::collectives {
namespace host {
extern const BackendPlugin kBackend;  // declared here: its folder stands on this one
}
namespace {

constexpr auto kSymbol = "ddp_backend_plugin";

/// What needs no library of its own.
constexpr std::array kBuiltIn{&kLocalBackend, &host::kBackend};

/// Folder of the shared object that holds this function; empty when it is linked into the program.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_backend), &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

[[noreturn]] void fail(ErrorCode code, std::string_view name, std::string cause, std::string hint) {
  throw Error{{.code = code,
               .attempted = fmt::format("loading the communication backend '{}'", name),
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

void* open_library(std::string_view name) {
  const std::string file = base::backend_file(name);
  const std::string user_folder = base::Environment::process().text("DDP_BACKEND_PATH");
  std::vector<std::string> candidates;
  std::error_code ignored;
  if (!user_folder.empty()) candidates.push_back((std::filesystem::path(user_folder) / file).string());
  // what the user has put there is meant, even if it cannot be loaded
  if (user_folder.empty() || !std::filesystem::exists(candidates.front(), ignored)) {
    if (const auto folder = own_folder(); !folder.empty()) candidates.push_back((folder / file).string());
    candidates.push_back(file);
  }
  std::string problems;
  for (const std::string& candidate : candidates) {
    // never closed: the backend's threads and exception types must outlive every group
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    problems += fmt::format("{}{}", problems.empty() ? "" : "; ", dlerror());
  }
  fail(ErrorCode::unavailable, name, problems, base::missing_backend_hint(name));
}

const BackendPlugin& load(std::string_view name) {
  if (!base::may_name_backend(name)) {
    fail(ErrorCode::invalid_argument, name, "that is no name of a backend", fmt::format("give {}", base::kBackendRule));
  }
  void* library = open_library(name);
  const auto* plugin = static_cast<const BackendPlugin*>(dlsym(library, kSymbol));
  if (plugin == nullptr) {
    fail(ErrorCode::unavailable, name, fmt::format("its library does not export {}", kSymbol), "reinstall libddp");
  }
  if (plugin->version != kBackendVersion) {
    fail(ErrorCode::mismatch, name,
         fmt::format("the plugin has interface version {}, this library {}", plugin->version, kBackendVersion),
         "install the plugin and libddp.so of the same version");
  }
  if (plugin->name == nullptr || name != plugin->name) {
    fail(ErrorCode::mismatch, name,
         fmt::format("the plugin in its file is '{}'", plugin->name != nullptr ? plugin->name : ""),
         fmt::format("a plugin's name is that of its file: {}", base::backend_file(name)));
  }
  return *plugin;
}

}  // namespace

bool is_built_in(std::string_view name) noexcept {
  return std::any_of(kBuiltIn.begin(), kBuiltIn.end(), [name](const auto* plugin) { return name == plugin->name; });
}

const BackendPlugin& load_backend(std::string_view name) {
  for (const BackendPlugin* plugin : kBuiltIn) {
    if (name == plugin->name) return *plugin;
  }
  static std::mutex mutex;
  static std::map<std::string, const BackendPlugin*, std::less<>> loaded;
  const std::lock_guard lock(mutex);
  const auto known = loaded.find(name);
  if (known != loaded.end()) return *known->second;
  const BackendPlugin& plugin = load(name);
  loaded.emplace(name, &plugin);
  return plugin;
}

}  // namespace ddp::collectives
