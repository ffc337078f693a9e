// Runs tests/support/spank_host as srun or slurmstepd would run, and reads what it saw.
#pragma once

namespace ddp::srun_plugin::test {

using Lines = std::vector<std::string>;

struct HostResult {
  int exit_status = -1;  ///< 128 + signal; 124: it was killed at the deadline
  std::string out;
  std::string err;
  int lines_of_err() const;
};

class SpankHostRun {
 public:
  /// @param context as spank_host calls it.
  explicit SpankHostRun(const std::string& context);
  SpankHostRun& operator=(SpankHostRun&&) = delete;
  ~SpankHostRun();

  /// A line of spank_host's settings. By default they name the plugin and ddp-step.
  SpankHostRun& set(const std::string& name, const std::string& value);
  /// Of the environment in which the host runs, which is empty but for PATH.
  SpankHostRun& environment(const std::string& name, const std::string& value);
  /// Programs in front of the host, as valgrind.
  SpankHostRun& under(const Lines& words);
  /// A folder with an MPI plugin of each type.
  SpankHostRun& with_mpi(const Lines& types);

  /// @param words srun's command line without its own name.
  HostResult run(const Lines& words = {});

  /// A file that the host wrote; fails the test if it is not there.
  Lines seen(const std::string& name) const;
  /// The same as variables.
  std::map<std::string, std::string> variables(const std::string& name) const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::multimap<std::string, std::string> settings_;
  std::map<std::string, std::string> environment_;
  Lines before_;
};

/// What Slurm tells the tasks of step 7.0, all on this host "n1".
void add_step_environment(SpankHostRun& run, int tasks);

}  // namespace ddp::srun_plugin::test
