// Ranks of nccl_rank over the doubles of CUDA and NCCL, and what they say of themselves.
#pragma once

#include "support/checkout.hpp"
#include "support/rank_processes.hpp"

namespace ddp::test {

inline std::vector<std::string> with_doubles(std::vector<std::string> more, const std::string& devices = "8") {
  more.insert(more.end(), {"DDP_CUDA_LIBRARY=" + built_file("lib/fake_cuda/libcuda.so.1"),
                           "DDP_NCCL_LIBRARY=" + built_file("lib/fake_nccl/libnccl.so.2"),
                           "FAKE_CUDA_KERNELS=" + built_file("lib/libhost_kernels.so"), "FAKE_CUDA_MEMORY_MIB=64",
                           "DDP_PEER_TIMEOUT=5", "DDP_LOG_LEVEL=info"});
  more.push_back("FAKE_CUDA_DEVICES=" + devices);
  return more;
}

/// The seconds behind the last @p word of a rank's output; -1 if there is none.
inline double seconds_behind(const std::string& output, const std::string& word = "WAITED ") {
  const auto place = output.rfind(word);
  return place == std::string::npos ? -1 : std::stod(output.substr(place + word.size()));
}

/// What the error that ended a rank says; empty without.
inline std::string error_in(const std::string& output) {
  return output.substr(std::min(output.find("ERROR "), output.size()));
}

}  // namespace ddp::test
