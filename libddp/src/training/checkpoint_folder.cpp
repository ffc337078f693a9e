#include "training/checkpoint_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <functional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"

namespace ddp::training {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepStart = "step-";
constexpr std::string_view kManifestName = "manifest";
constexpr std::string_view kShardStart = "rank-";
constexpr std::string_view kUnfinishedEnd = ".tmp";  // base::NewFile's

/// The names in a folder; none if it is not there.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    names.push_back(at->path().filename().string());
  }
  if (failure && failure != std::errc::no_such_file_or_directory) {
    throw base::system_error(fmt::format("listing '{}'", folder), failure.value());
  }
  return names;
}

/// Removes files of checkpoints, and no others, of which a filter takes the name.
void remove_files(const std::string& folder, const std::function<bool(std::string_view)>& goes) {
  for (const std::string& name : names_in(folder)) {
    const bool is_ours = name.starts_with(kShardStart) || name.starts_with(kManifestName);
    if (!is_ours || !goes(name)) continue;
    std::error_code failure;
    fs::remove(fs::path(folder) / name, failure);
    if (failure) throw base::system_error(fmt::format("removing '{}/{}'", folder, name), failure.value());
  }
}

/// A save is none the worse for what it leaves lying.
void unless_it_fails(const std::function<void()>& clear) {
  try {
    clear();
  } catch (const Error& error) {
    base::log(base::LogLevel::warning, "files of old checkpoints stay: {}", error.what());
  }
}

void sync_folder(const std::string& folder) {
  const base::UniqueFd fd{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    throw base::system_error(fmt::format("writing the names in '{}' to the disk", folder), errno);
  }
}

}  // namespace

std::string CheckpointFolder::step_path(std::int64_t step) const {
  return fmt::format("{}/{}{}", path_, kStepStart, step);
}

std::string CheckpointFolder::manifest_path(std::int64_t step) const {
  return fmt::format("{}/{}", step_path(step), kManifestName);
}

std::string CheckpointFolder::shard_path(const ShardOrigin& origin) const {
  return fmt::format("{}/{}{}-of-{}.{}", step_path(origin.step), kShardStart, origin.rank, origin.files, origin.id);
}

void CheckpointFolder::make(std::int64_t step) const {
  const std::string folder = step_path(step);
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw base::system_error(fmt::format("making the folder '{}'", folder), failure.value());
}

void CheckpointFolder::sync(std::int64_t step) const {
  sync_folder(step_path(step));
  sync_folder(path_);
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> found;
  for (const std::string& name : names_in(path_)) {
    if (!name.starts_with(kStepStart)) continue;
    std::int64_t step = -1;
    std::from_chars(name.data() + kStepStart.size(), name.data() + name.size(), step);
    if (step >= 0 && fmt::format("{}{}", kStepStart, step) == name) found.push_back(step);
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

bool CheckpointFolder::is_complete(std::int64_t step) const {
  std::error_code failure;
  const bool exists = fs::exists(manifest_path(step), failure);
  if (failure) throw base::system_error(fmt::format("looking for '{}'", manifest_path(step)), failure.value());
  return exists;
}

std::vector<std::int64_t> CheckpointFolder::complete_steps() const {
  std::vector<std::int64_t> found = steps();
  std::erase_if(found, [this](std::int64_t step) { return !is_complete(step); });
  return found;
}

void CheckpointFolder::remove(std::int64_t step) const {
  const std::string folder = step_path(step);
  // first: from here on it is no checkpoint, whatever ends this
  remove_files(folder, [](std::string_view name) { return name == kManifestName; });
  sync_folder(folder);
  remove_files(folder, [](std::string_view) { return true; });
  std::error_code failure;
  fs::remove(folder, failure);  // stays if it has other files, too
}

void CheckpointFolder::clear_unfinished(std::int64_t step) const {
  unless_it_fails([&] {
    for (const std::int64_t each : steps()) {
      const bool complete = is_complete(each);
      if (!complete && each != step) {
        remove(each);
      } else {
        remove_files(step_path(each),
                     [&](std::string_view name) { return !complete || name.ends_with(kUnfinishedEnd); });
      }
    }
  });
}

void CheckpointFolder::clear_old(int keep, const CheckpointManifest& saved) const {
  unless_it_fails([&] {
    const std::string own = fmt::format(".{}", saved.id);
    remove_files(step_path(saved.step),
                 [&](std::string_view name) { return name.starts_with(kShardStart) && !name.ends_with(own); });
    if (keep == 0) return;
    int newer = 0;
    for (const std::int64_t step : complete_steps()) {
      if (newer++ >= keep && step != saved.step) remove(step);
    }
  });
}

}  // namespace ddp::training
