#include "launch/job_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "launch/private_file.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kReadLimit{30};

}  // namespace

std::string job_folder(const base::Environment& environment) {
  std::string folder = environment.raw("XDG_STATE_HOME").value_or("");
  if (!folder.starts_with('/')) {
    folder = users_home(environment);
    if (folder.empty())
      throw Error{{.code = ErrorCode::unavailable,
                   .attempted = "looking for the user's files of running jobs",
                   .cause = "this user has no home folder, and HOME is not set"}};
    folder += "/.local/state";
  }
  return folder + "/libddp/jobs";
}

std::string job_file_path(const base::Environment& environment, const std::string& job) {
  const std::string cluster = environment.raw("SLURM_CLUSTER_NAME").value_or("");
  return fmt::format("{}/{}{}{}", job_folder(environment), cluster, cluster.empty() ? "" : ".", job);
}

std::string job_file_path(const base::Environment& environment, const std::string& host, pid_t pid) {
  return fmt::format("{}/{}:{}", job_folder(environment), host, pid);
}

std::vector<std::string> find_job_files(const base::Environment& environment, const std::string& name) {
  std::vector<std::string> found;
  std::error_code none;  // no folder: no job
  for (const auto& entry : std::filesystem::directory_iterator{job_folder(environment), none}) {
    const std::string file = entry.path().filename().string();
    if (file == name || file.ends_with("." + name) || file.ends_with(":" + name)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

JobFile::JobFile(std::string path, const AgentSettings& settings)
    : path_(std::move(path)),
      inode_(write_private_file(path_, encode(settings, DDP_VERSION_STRING),
                                fmt::format("writing the job file '{}'", path_), IfThere::replace)) {}

JobFile::~JobFile() {
  struct stat there {};
  if (::lstat(path_.c_str(), &there) == 0 && there.st_ino == inode_) ::unlink(path_.c_str());
}

std::optional<AgentSettings> read_job_file(const std::string& path) {
  const std::string attempted = fmt::format("reading the job file '{}'", path);
  const base::UniqueFd file =
      open_private_file(path, attempted, "remove it, and start the job again",
                        "they may know the job's secret: end that job, remove the file, and start the job again");
  if (!file) return std::nullopt;
  return read_agent_settings(file.get(), DDP_VERSION_STRING, Deadline::after(kReadLimit), attempted);
}

}  // namespace ddp::launcher
