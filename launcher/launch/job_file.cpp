#include "launch/job_file.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/errors.hpp"

namespace ddp::launcher {
namespace {

void write_all(int fd, std::string_view text, const std::string& attempted) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) throw base::system_error(attempted, errno);
    text.remove_prefix(static_cast<std::size_t>(size));
  }
}

void make_folders(const std::filesystem::path& folder, const std::string& attempted) {
  struct stat known {};
  if (::stat(folder.c_str(), &known) == 0) return;
  if (folder.has_relative_path()) make_folders(folder.parent_path(), attempted);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) throw base::system_error(attempted, errno);
}

}  // namespace

std::string users_home(const base::Environment& environment) {
  if (auto home = environment.raw("HOME"); home && home->starts_with('/')) return *home;
  std::array<char, 4096> buffer;
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr)
    return found->pw_dir;
  return {};
}

base::UniqueFd open_private_file(const std::string& path, const std::string& attempted, const std::string& remedy,
                                 const std::string& leak_remedy) {
  const auto refuse = [&attempted](std::string cause, const std::string& hint) {
    throw Error{{.code = ErrorCode::conflict, .attempted = attempted, .cause = std::move(cause), .hint = hint}};
  };
  base::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (!file && errno == ENOENT) return {};
  if (!file && errno == ELOOP) refuse("it is a symbolic link", "replace it by the file itself");
  if (!file) throw base::system_error(attempted, errno);
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) throw base::system_error(attempted, errno);
  if (!S_ISREG(found.st_mode)) refuse("it is not a regular file", remedy);
  if (found.st_uid != ::geteuid())
    refuse(fmt::format("it belongs to user {}, but this is user {}", found.st_uid, ::geteuid()), remedy);
  if ((found.st_mode & 077U) != 0)
    refuse(fmt::format("others may use it: its mode is {:04o}", found.st_mode & 07777U), leak_remedy);
  return file;
}

ino_t write_private_file(const std::string& path, const std::string& text, const std::string& attempted,
                         IfThere if_there) {
  const std::filesystem::path whole{path};
  make_folders(whole.parent_path(), attempted);
  std::string other_name = whole.parent_path() / ("." + whole.filename().string() + ".XXXXXX");  // no job's file
  const base::UniqueFd file{::mkostemp(other_name.data(), O_CLOEXEC)};
  if (!file) throw base::system_error(attempted, errno);
  struct Removal {
    const std::string& name;
    ~Removal() { ::unlink(name.c_str()); }
  } const removal{other_name};
  write_all(file.get(), text, attempted);
  if (::fsync(file.get()) != 0) throw base::system_error(attempted, errno);
  struct stat made {};
  if (::fstat(file.get(), &made) != 0) throw base::system_error(attempted, errno);
  if (if_there == IfThere::replace) {
    if (::rename(other_name.c_str(), path.c_str()) != 0) throw base::system_error(attempted, errno);
  } else if (::link(other_name.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    throw base::system_error(attempted, errno);
  }
  return made.st_ino;
}

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
