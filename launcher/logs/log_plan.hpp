// Decides where each stream of each rank goes: torchrun's -r, -t, --log-dir, filters and error files.
#pragma once

#include <string>
#include <string_view>

#include "logs/log_pump.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

/// The log folder of one node's job: "<log_dir>/<name>_<suffix>[.node<K>]", with "attempt_<k>/<local rank>" below it.
/// Without --log-dir, @p scratch is <log_dir>: it goes away with the job. --log-dir=/dev/null: no files.
/// By --log-layout rank, ranks' output is in "<log_dir>/rank.<rank>" instead, and all else in scratch.
class LogFolders {
 public:
  /// Throws Error: system when the folder cannot be made or written to, invalid_argument when it is a file.
  LogFolders(const LogOptions& options, const std::string& scratch, const std::string& name, const std::string& suffix,
             int node_rank, int num_nodes);

  bool enabled() const { return !root_.empty(); }
  /// They outlive the job.
  bool kept() const { return enabled() && kept_; }
  const std::string& root() const { return root_; }
  /// Makes "attempt_<k>" and a folder per local rank, mode 0700. @return the attempt's folder; empty if not enabled.
  std::string make_attempt(int attempt, int nproc) const;
  /// Of --log-layout rank, for files of -r and -t: makes "<log_dir>/rank.<rank>", whose number has as many digits as
  /// the job's last rank. Empty for the other layout, where they are in the attempt's folder.
  std::string make_rank(int rank, int world_size) const;
  /// TORCHELASTIC_ERROR_FILE of a rank: "<attempt folder>/<local rank>/error.json"; empty if not enabled.
  static std::string error_file(const std::string& attempt_folder, int local_rank);

 private:
  std::string root_;
  std::string ranks_;  ///< what folders of ranks are in; empty: there are none
  bool kept_ = false;
};

/// What a rank's standard output and standard error get. inherit: ddprun's own descriptor, without a pipe.
struct StreamPlan {
  bool inherit = true;
  StreamRoute route;
};
struct RankStreams {
  StreamPlan out, err;
};

/// B21 to B26 of torchrun: -r to files only; -t to files and, prefixed, to the console; neither: unprefixed to the
/// console. Filters keep ranks off the console, not out of files. Standard error always goes through a pipe, so that a
/// failed rank's last lines can be reported, unless it is a terminal and @p single: a single rank keeps its terminal.
/// --log-timestamps and JSON prefix all console lines. @param rank_folder of LogFolders::make_rank(). @param
/// job_console of several nodes: a filtered rank's lines are to go there, too.
RankStreams plan_streams(const LogOptions& options, const std::string& attempt_folder, int rank, int local_rank,
                         const std::string& role, bool stderr_is_terminal, bool single, bool job_console,
                         const std::string& rank_folder = {});

// Fills the template of a console line's prefix.

/// torchrun's prefix where no template is given.
inline constexpr std::string_view kDefaultPrefixTemplate = "[${role_name}${local_rank}]:";

/// ddprun's where there are several nodes, whose local ranks are the same.
inline constexpr const char* kRankPrefixTemplate = "[${rank}]:";

/// What $role_name, $rank and $local_rank stand for.
struct PrefixValues {
  std::string_view role_name;
  int rank = 0;
  int local_rank = 0;
};

/// By the rules of options/string_template.hpp.
std::string fill_prefix_template(std::string_view text, const PrefixValues& values);

}  // namespace ddp::launcher
