#include "training/checkpoint_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"

namespace ddp::training {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepStart = "step-";
constexpr std::string_view kManifestName = "manifest";
constexpr std::string_view kShardStart = "rank-";
constexpr std::string_view kUnfinishedEnd = ".tmp";                  // base::NewFile's
constexpr std::chrono::hours kOldRemains{24};                        // no save takes as long
constexpr std::size_t kMostManifestBytes = std::size_t{256} << 20U;  // a million ranks have 80 MB

/// The names in a folder; none if it does not exist.
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

/// Removes checkpoint files, and no others, whose names a filter accepts.
/// @return whether there were any
bool remove_files(const std::string& folder, const std::function<bool(std::string_view)>& goes) {
  bool removed = false;
  for (const std::string& name : names_in(folder)) {
    const bool is_ours = name.starts_with(kShardStart) || name.starts_with(kManifestName);
    if (!is_ours || !goes(name)) continue;
    std::error_code failure;
    removed |= fs::remove(fs::path(folder) / name, failure);
    if (failure) throw base::system_error(fmt::format("removing '{}/{}'", folder, name), failure.value());
  }
  return removed;
}

/// The id of the save whose rank's file has this name, whole or unfinished; empty for other names.
std::string_view save_of(std::string_view name) {
  const auto files = name.find("-of-");
  if (!name.starts_with(kShardStart) || files == std::string_view::npos) return {};
  const auto dot = name.find('.', files);
  if (dot == std::string_view::npos) return {};
  const std::string_view id = name.substr(dot + 1, kIdDigits);
  const std::string_view rest = name.substr(dot + 1 + id.size());
  const bool is_id = id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return is_id && (rest.empty() || rest.ends_with(kUnfinishedEnd)) ? id : std::string_view{};
}

bool is_old(const std::string& path) {
  std::error_code failure;
  const auto written = fs::last_write_time(path, failure);
  return !failure && fs::file_time_type::clock::now() - written > kOldRemains;
}

/// Whether a file of a save that made no checkpoint may be removed: another job may still be writing it.
bool is_left(const std::string& folder, std::string_view name, const CheckpointFolder::Inherits& inherits) {
  const std::string_view save = save_of(name);
  return (!save.empty() && inherits(save)) || is_old(fmt::format("{}/{}", folder, name));
}

/// A save succeeds even if clearing old files fails.
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

/// Also creates parent folders; all names are on the disk when it returns.
void make_folder(const std::string& folder) {
  std::error_code failure;
  std::vector<fs::path> missing;
  for (fs::path at = folder; !at.empty() && !fs::exists(at, failure) && !failure; at = at.parent_path()) {
    missing.push_back(at);
  }
  fs::create_directories(folder, failure);
  if (failure) throw base::system_error(fmt::format("making the folder '{}'", folder), failure.value());
  for (const fs::path& made : missing) {  // created by this rank, or by another at the same time
    const std::string above = made.has_parent_path() ? made.parent_path().string() : ".";
    if (::access(above.c_str(), R_OK) == 0) sync_folder(above);  // fsync needs permission to read
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

void CheckpointFolder::make() const { make_folder(path_); }

void CheckpointFolder::make(std::int64_t step) const {
  make();
  const std::string folder = step_path(step);
  std::error_code failure;
  fs::create_directory(folder, failure);
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

CheckpointManifest CheckpointFolder::read_manifest(std::int64_t step) const {
  const std::string path = manifest_path(step);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) {
    const int number = errno;
    throw base::system_error(fmt::format("reading '{}'", path), number, {},
                             number == ENOENT ? ErrorCode::not_found : ErrorCode::system);
  }
  if (text.size() > kMostManifestBytes) throw_damaged(path, "it is too large");
  CheckpointManifest manifest = parse_manifest(text, path);
  if (manifest.step != step) throw_damaged(path, fmt::format("it is of step {}", manifest.step), ErrorCode::mismatch);
  return manifest;
}

void CheckpointFolder::remove(std::int64_t step) const {
  const std::string folder = step_path(step);
  // remove the manifest first: without it this is not a checkpoint, however the removal ends
  remove_files(folder, [](std::string_view name) { return name == kManifestName; });
  sync_folder(folder);
  remove_files(folder, [](std::string_view) { return true; });
  std::error_code failure;
  fs::remove(folder, failure);  // fails if it has other files, too
}

void CheckpointFolder::remove_unfinished_beside(std::int64_t complete, const Inherits& inherits) const {
  const std::string folder = step_path(complete);
  remove_files(
      folder, [&](std::string_view name) { return name.ends_with(kUnfinishedEnd) && is_left(folder, name, inherits); });
  std::set<std::string> saves;
  for (const std::string& name : names_in(folder)) {
    if (const std::string_view save = save_of(name); !save.empty()) saves.emplace(save);
  }
  if (saves.size() < 2) return;  // saves reading the manifest
  const std::string own = read_manifest(complete).id;
  sync_folder(folder);  // the disk may still have the previous manifest, which refers to the files being removed
  remove_files(folder, [&](std::string_view name) {
    const std::string_view save = save_of(name);
    return !save.empty() && save != own && is_left(folder, name, inherits);
  });
}

void CheckpointFolder::clear_unfinished(const Inherits& inherits) const {
  unless_it_fails([&] {
    for (const std::int64_t each : steps()) {
      unless_it_fails([&] {  // a damaged manifest of one step must not protect the remains of others
        if (is_complete(each)) return remove_unfinished_beside(each, inherits);
        const std::string folder = step_path(each);
        const bool old = is_old(folder);
        const auto left = [&](std::string_view name) { return is_left(folder, name, inherits); };
        std::error_code failure;
        if (remove_files(folder, left) || old) fs::remove(folder, failure);  // fails if it has other files, too
      });
    }
  });
}

std::optional<FileGap> CheckpointFolder::gap_of(const CheckpointManifest& manifest) const {
  ShardOrigin origin{
      .id = manifest.id, .step = manifest.step, .rank = 0, .files = static_cast<std::uint32_t>(manifest.shards.size())};
  for (; origin.rank < manifest.shards.size(); ++origin.rank) {
    const std::string path = shard_path(origin);
    const std::string name = fs::path(path).filename().string();
    const std::uint64_t wanted = manifest.shards[origin.rank].bytes;
    const int rank = static_cast<int>(origin.rank);
    // Opening makes network file systems ask their server.
    const base::UniqueFd fd{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    struct stat facts {};
    if (!fd || ::fstat(fd.get(), &facts) != 0) {
      const int number = errno;
      const bool absent = number == ENOENT;
      return FileGap{.rank = rank,
                     .cause = absent ? fmt::format("'{}' is missing", name)
                                     : fmt::format("'{}': {}", name, base::errno_text(number)),
                     .absent = absent};
    }
    if (static_cast<std::uint64_t>(facts.st_size) != wanted) {
      return FileGap{.rank = rank,
                     .cause = fmt::format("'{}' has {} bytes instead of {}", name, facts.st_size, wanted),
                     .absent = false};
    }
  }
  return std::nullopt;
}

bool CheckpointFolder::is_whole(std::int64_t step) const {
  try {
    return !gap_of(read_manifest(step));
  } catch (const Error& error) {
    base::log(base::LogLevel::warning, "{}", error.what());
    return false;
  }
}

void CheckpointFolder::publish(const CheckpointManifest& manifest, const Inherits& inherits) const {
  const std::string path = manifest_path(manifest.step);
  const auto check_files = [&] {
    const auto gap = gap_of(manifest);
    if (!gap) return;
    throw Error{{.code = ErrorCode::system,
                 .attempted = fmt::format("completing the checkpoint '{}'", step_path(manifest.step)),
                 .cause = fmt::format("{}, which rank {} of its group has written", gap->cause, gap->rank),
                 .hint = "does another job or a cleaner of old files remove files of this folder?"}};
  };
  std::string replaced;
  unless_it_fails([&] {
    if (is_complete(manifest.step)) replaced = read_manifest(manifest.step).id;
  });
  check_files();
  base::write_file(path, format_manifest(manifest));
  sync(manifest.step);
  try {
    check_files();
  } catch (const Error&) {
    std::error_code failure;
    fs::remove(path, failure);
    throw;
  }
  const std::string folder = step_path(manifest.step);
  unless_it_fails([&] {
    remove_files(folder, [&](std::string_view name) {
      const std::string_view save = save_of(name);
      return !save.empty() && save != manifest.id && (save == replaced || is_left(folder, name, inherits));
    });
  });
}

void CheckpointFolder::clear_old(int keep, const CheckpointManifest& saved) const {
  if (keep == 0) return;
  unless_it_fails([&] {
    int whole = 0;
    for (const std::int64_t step : complete_steps()) {
      if (step == saved.step) {
        ++whole;
      } else if (whole >= keep) {
        remove(step);
      } else if (is_whole(step)) {
        ++whole;
      }
    }
  });
}

}  // namespace ddp::training
