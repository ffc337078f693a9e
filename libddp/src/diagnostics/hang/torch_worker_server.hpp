// PyTorch's control plane in a rank (torch.distributed.elastic.control_plane): an HTTP server at a Unix socket, on a
// thread that answers while the program hangs, without Python's lock.
// Source: torch/csrc/distributed/c10d/control_plane/WorkerServer.cpp.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::diagnostics {

/// The socket of process @p pid, as this process can reach it; empty: it has none, or it is not to be seen.
/// @param proc "/proc".
std::string find_worker_server(const std::string& proc, pid_t pid);

/// The flight recorders' content in JSON, of each recorder that this PyTorch has: Gloo's, NCCL's. Throws Error:
/// unavailable, timeout, protocol (also for more than 32 MiB).
std::vector<std::string> ask_worker_server(const std::string& socket, Deadline deadline);

}  // namespace ddp::diagnostics
