// The words that name a backend of process groups: in DDP_BACKEND, --ddp-backend and make_process_group.
#pragma once

#include <array>
#include <string_view>

namespace ddp::base {

/// cpu and gloo mean host, the backend of CPUs; ddp is auto, and what torch.distributed takes by itself.
inline constexpr std::array<std::string_view, 6> kBackendWords{"auto", "host", "cpu", "gloo", "nccl", "ddp"};
/// The same for the table of variables and for srun's help.
inline constexpr const char* kBackendChoices = "auto|host|cpu|gloo|nccl|ddp";

/// The backend's own name; of a word that is none of ours, the word: a plugin's.
constexpr std::string_view backend_of(std::string_view word) { return word == "cpu" || word == "gloo" ? "host" : word; }

}  // namespace ddp::base
