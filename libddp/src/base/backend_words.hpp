// The words that name a backend of process groups: in DDP_BACKEND, --ddp-backend, ddprun's --backend and
// make_process_group. Each that is none of ours names a plugin.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace ddp::base {

/// cpu and gloo mean host, the backend of CPUs; ddp is auto, and what torch.distributed takes by itself.
inline constexpr std::array<std::string_view, 6> kBackendWords{"auto", "host", "cpu", "gloo", "nccl", "ddp"};
/// For the errors.
inline constexpr const char* kBackendRule =
    "auto, host, cpu, gloo, nccl, ddp, or a plugin's name: small letters, digits, _ and -";

/// Whether it is a name that a backend can have: there may be no such plugin.
constexpr bool may_name_backend(std::string_view word) {
  constexpr auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !word.empty() && std::all_of(word.begin(), word.end(), allowed);
}

/// The backend's own name; of a word that is none of ours, the word: a plugin's.
constexpr std::string_view backend_of(std::string_view word) { return word == "cpu" || word == "gloo" ? "host" : word; }

}  // namespace ddp::base
