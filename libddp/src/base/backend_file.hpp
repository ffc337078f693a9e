// Files of backend plugins, for those who must not load them: launchers say that there is no such backend before a rank
// starts.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/env_table.hpp"

namespace ddp::base {

/// "libddp_NAME.so"
std::string backend_file(std::string_view name);

/// For an error about a backend that cannot be found: what was perhaps meant, what there is, and what to do.
std::string missing_backend_hint(std::string_view name);

/// Looks for the plugins that @p word names as make_process_group does: in DDP_BACKEND_PATH, beside libddp.so, where
/// the loader looks. Libddp's own are not looked for: a program may bring another libddp.so, with its plugins.
/// @param word empty: nothing is looked for. @param folders where libddp.so may lie. Throws Error(unavailable) if a
/// plugin is in none of them, Error(invalid_argument) if @p word names no backends.
void require_backend_files(const std::string& attempted, std::string_view word, const Environment& environment,
                           std::span<const std::string> folders);

// The words that name backends of process groups: in DDP_BACKEND, --ddp-backend, ddprun's --backend and
// make_process_group. Each that is none of ours names a plugin. "cpu:NAME,cuda:NAME", as in torch.distributed, names
// one for each type of device.

/// cpu and gloo mean host, the backend of CPUs; ddp is auto, and what torch.distributed takes by itself.
inline constexpr std::array<std::string_view, 6> kBackendWords{"auto", "host", "cpu", "gloo", "nccl", "ddp"};
/// For the errors.
inline constexpr const char* kBackendRule =
    "auto, host, cpu, gloo, nccl, ddp, a plugin's name (small letters, digits, _ and -), or cpu:NAME,cuda:NAME";

/// Whether it is a name that a backend can have: there may be no such plugin.
constexpr bool may_name_backend(std::string_view word) {
  constexpr auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !word.empty() && std::all_of(word.begin(), word.end(), allowed);
}

/// The backend's own name; of a word that is none of ours, the word: a plugin's.
constexpr std::string_view backend_of(std::string_view word) { return word == "cpu" || word == "gloo" ? "host" : word; }

/// What a word asks for.
struct BackendNames {
  std::string_view cpu = "host";  ///< backend for CPU tensors, by its own name
  std::string_view cuda = {};     ///< for CUDA tensors; empty: none
  bool cuda_if_possible = false;  ///< else it is required
};

/// Nothing if @p word names no backends. What it returns points into @p word.
constexpr std::optional<BackendNames> backends_of(std::string_view word) {
  if (word == "auto" || word == "ddp") return BackendNames{.cuda = "nccl", .cuda_if_possible = true};
  if (word == "nccl") return BackendNames{.cuda = "nccl"};
  if (may_name_backend(word)) return BackendNames{.cpu = backend_of(word)};
  BackendNames names;
  bool cpu = false;
  for (bool more = true; more;) {
    const std::string_view part = word.substr(0, word.find(','));
    more = part.size() < word.size();
    word.remove_prefix(more ? part.size() + 1 : part.size());
    const std::string_view device = part.substr(0, part.find(':'));
    if (device.size() == part.size()) return std::nullopt;
    const std::string_view name = part.substr(device.size() + 1);
    if (!may_name_backend(name) || name == "auto" || name == "ddp") return std::nullopt;
    if (device == "cpu" && !cpu) {
      names.cpu = backend_of(name);
      cpu = true;
    } else if (device == "cuda" && names.cuda.empty()) {
      names.cuda = backend_of(name);
    } else {
      return std::nullopt;
    }
  }
  return names;
}

}  // namespace ddp::base
