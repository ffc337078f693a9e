// Asks the nodes of a running Slurm job, by a helper on each that srun starts beside the ranks. srun keeps a helper's
// lines of up to 1 KiB whole (slurmstepd's MAX_MSG_LEN) and mixes the parts of longer ones with other nodes'.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

namespace ddp::tools {

/// What a helper prints: lines of at most 1000 characters. @param host of at most 64. @param message not empty.
std::string helper_lines(std::string_view host, std::span<const std::byte> message);

/// Puts together what all helpers have printed. Not thread-safe.
class HelperLines {
 public:
  /// Lines of other kinds are ignored. Those of a host come in order; of several hosts, mixed.
  void add(std::string_view line);

  /// Of the hosts whose lines are all there, one message each, by host. Others are in @p notes.
  std::vector<Bytes> take(std::vector<std::string>& notes);

 private:
  struct Host {
    std::size_t lines = 0;
    std::size_t wanted = 0;
    std::string digits;
  };
  std::map<std::string, Host, std::less<>> hosts_;  ///< by name and process
};

struct NodeAnswers {
  std::vector<Bytes> messages;     ///< of the nodes that have answered, by host
  std::vector<std::string> notes;  ///< what is wrong with the others
  int nodes = 0;                   ///< of the job
};

bool has_slurm();  ///< by its squeue

/// @return the number of nodes of a Slurm job. Throws as ask_nodes_of_job().
int require_running_job(const std::string& job, Deadline deadline);

/// @param job "17" or "17.0". @param helper what ddp-info gets on each node; it prints helper_lines. Throws Error:
/// not_found, also where another user's job is hidden; unavailable without Slurm and for another user's job.
NodeAnswers ask_nodes_of_job(const std::string& job, std::vector<std::string> helper, Deadline deadline);

}  // namespace ddp::tools
