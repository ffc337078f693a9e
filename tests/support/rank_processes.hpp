// Real ranks for tests: processes of one job, started without a launcher, over a PMI-2 server in the test.
// Each can be killed, stopped and watched.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "support/fake_pmi_server.hpp"

namespace ddp::test {

/// How a rank ended.
struct RankResult {
  bool ended = false;  ///< false: it was still running at the deadline, and was killed then
  int exit_code = -1;  ///< of a normal exit
  int signal = 0;      ///< that ended it; 0 for a normal exit
  std::string output;  ///< standard output and error together
  std::chrono::milliseconds lifetime{};
};

/// Starts them in the constructor; whatever still runs is killed in the destructor.
class RankProcesses {
 public:
  /// @param command program and arguments, the same for all ranks.
  /// @param memory_domains over which ranks are dealt in turn: ranks of different ones do not share memory.
  RankProcesses(int world_size, const std::vector<std::string>& command,
                const std::vector<std::string>& extra_environment = {}, int memory_domains = 1);
  RankProcesses& operator=(RankProcesses&&) = delete;
  ~RankProcesses();

  void signal(int rank, int number) const;
  /// Waits until every rank has written @p text; false at the deadline.
  bool all_wrote(const std::string& text, Deadline deadline);
  /// Waits for all but @p except. Ranks that do not end by the deadline are killed and reported as such.
  std::vector<RankResult> wait(Deadline deadline, std::optional<int> except = std::nullopt);

 private:
  struct Rank {
    pid_t pid = -1;
    base::UniqueFd output;
    bool reaped = false;
    RankResult result;
  };
  void start(int rank, const std::vector<std::string>& command, std::vector<std::string> extra_environment);
  void collect(std::chrono::milliseconds limit);
  void reap(Rank& rank);

  Deadline::Clock::time_point started_ = Deadline::Clock::now();
  FakePmiServer server_;
  std::vector<Rank> ranks_;
};

}  // namespace ddp::test
