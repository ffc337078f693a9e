#include "training/checkpoint_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"
#include "training/damaged_file.hpp"

namespace ddp::training {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepStart = "step-";
constexpr std::string_view kManifestName = "manifest";
constexpr std::string_view kShardStart = "rank-";
constexpr std::string_view kUnfinishedEnd = ".tmp";                  // base::NewFile's
constexpr std::size_t kMostManifestBytes = std::size_t{256} << 20U;  // a million ranks have 80 MB

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

/// The id of the save whose rank's file has this name; empty for other names.
std::string_view save_of(std::string_view name) {
  if (!name.starts_with(kShardStart) || name.find("-of-") == std::string_view::npos) return {};
  const std::string_view id = name.substr(name.rfind('.') + 1);
  const bool is_id = id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return is_id ? id : std::string_view{};
}

void remove_other_saves(const std::string& folder, std::string_view id) {
  remove_files(folder, [&](std::string_view name) {
    const std::string_view save = save_of(name);
    return !save.empty() && save != id;
  });
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
  std::vector<fs::path> missing;
  for (fs::path at = path_; !at.empty() && !fs::exists(at, failure) && !failure; at = at.parent_path()) {
    missing.push_back(at);
  }
  fs::create_directories(folder, failure);
  if (failure) throw base::system_error(fmt::format("making the folder '{}'", folder), failure.value());
  for (const fs::path& made : missing) {  // by this rank, or by another one at the same time
    const std::string above = made.has_parent_path() ? made.parent_path().string() : ".";
    if (::access(above.c_str(), R_OK) == 0) sync_folder(above);  // only what may be read can be synchronized
  }
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

CheckpointManifest CheckpointFolder::read_manifest(std::int64_t step) const {
  const std::string path = manifest_path(step);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) throw base::system_error(fmt::format("reading '{}'", path), errno);
  if (text.size() > kMostManifestBytes) throw_damaged(path, "it is too large");
  CheckpointManifest manifest = parse_manifest(text, path);
  if (manifest.step != step) throw_damaged(path, fmt::format("it is of step {}", manifest.step), ErrorCode::mismatch);
  return manifest;
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

void CheckpointFolder::remove_unfinished_beside(std::int64_t complete) const {
  const std::string folder = step_path(complete);
  remove_files(folder, [](std::string_view name) { return name.ends_with(kUnfinishedEnd); });
  std::set<std::string> saves;
  for (const std::string& name : names_in(folder)) {
    if (const std::string_view save = save_of(name); !save.empty()) saves.emplace(save);
  }
  if (saves.size() < 2) return;  // spares reading the manifest
  const std::string own = read_manifest(complete).id;
  sync_folder(folder);  // first: the manifest on the disk may still be the one before, of the files that go
  remove_other_saves(folder, own);
}

void CheckpointFolder::clear_unfinished(std::int64_t step) const {
  unless_it_fails([&] {
    for (const std::int64_t each : steps()) {
      unless_it_fails([&] {  // one step's damaged manifest does not keep the others' remains
        if (is_complete(each)) {
          remove_unfinished_beside(each);
        } else if (each != step) {
          remove(each);
        } else {
          remove_files(step_path(each), [](std::string_view) { return true; });
        }
      });
    }
  });
}

void CheckpointFolder::clear_old(int keep, const CheckpointManifest& saved) const {
  unless_it_fails([&] {
    remove_other_saves(step_path(saved.step), saved.id);
    if (keep == 0) return;
    int newer = 0;
    for (const std::int64_t step : complete_steps()) {
      if (newer++ >= keep && step != saved.step) remove(step);
    }
  });
}

}  // namespace ddp::training
