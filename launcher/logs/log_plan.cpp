#include "logs/log_plan.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "logs/output_file.hpp"
#include "options/string_template.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kNoFiles = "/dev/null";
constexpr std::size_t kLongestRunName = 128;  // of 255 (NAME_MAX)

/// A run id may be anything; in a folder's name it must not lead elsewhere.
std::string folder_name(const std::string& run_id) {
  std::string name = run_id.substr(0, kLongestRunName);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' ' || c == '\x7f'; },
      '_');
  return name;
}

/// The folder may be there, made by the previous attempt. In a log folder that others may write to, such as /tmp, they
/// may have put something else in its place.
void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return;
  const int error = errno;
  struct stat found {};
  const bool is_folder = error == EEXIST && ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
  if (is_folder && (found.st_uid == ::geteuid() || found.st_uid == 0)) return;
  if (is_folder) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = fmt::format("making the log folder '{}'", path),
                 .cause = fmt::format("it exists and belongs to user {}", found.st_uid),
                 .hint = "set --log-dir to a folder that only you may write to"}};
  }
  throw base::system_error(fmt::format("making the log folder '{}'", path), error,
                           "set --log-dir to a folder on this host that you may write to");
}

bool shown(const LogOptions& options, int rank, int local_rank) {
  // An empty filter is none, as in torchrun.
  const auto passes = [](const std::optional<std::set<int>>& filter, int number) {
    return !filter || filter->empty() || filter->contains(number);
  };
  return passes(options.local_ranks_filter, local_rank) && passes(options.ranks_filter, rank);
}

}  // namespace

LogFolders::LogFolders(const LogOptions& options, const std::string& scratch, const std::string& name,
                       const std::string& suffix, int node_rank, int num_nodes) {
  const bool given = options.directory && !options.directory->empty();
  if (given && *options.directory == kNoFiles) return;
  kept_ = given && !options.by_rank;
  // Absolute: workers are told of files in it, and may change their folder.
  const auto absolute = [](const std::string& path) {
    return std::filesystem::absolute(path).lexically_normal().string();
  };
  const std::string target = absolute(given ? *options.directory : scratch);
  struct stat found {};
  if (given && ::stat(target.c_str(), &found) == 0 && !S_ISDIR(found.st_mode)) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "reading --log-dir",
                 .cause = fmt::format("'{}' is a file", *options.directory),
                 .hint = "give a folder, or /dev/null for no log files"}};
  }
  if (given && options.by_rank) ranks_ = target;
  const std::string base = kept_ ? target : absolute(scratch);
  make_private_folders(base);
  const std::string node = num_nodes > 1 ? fmt::format(".node{}", node_rank) : "";
  root_ = (std::filesystem::path{base} / fmt::format("{}_{}{}", folder_name(name), folder_name(suffix), node)).string();
  make_folder(root_);
  // The folder may be there already, made by the previous attempt; writing to it may have become impossible.
  if (::faccessat(AT_FDCWD, root_.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw base::system_error(fmt::format("writing to the log folder '{}'", root_), errno,
                             "set --log-dir to a folder on this host that you may write to");
  }
}

std::string LogFolders::make_attempt(int attempt, int nproc) const {
  if (!enabled()) return {};
  std::string folder = fmt::format("{}/attempt_{}", root_, attempt);
  make_folder(folder);
  for (int local_rank = 0; local_rank < nproc; ++local_rank) make_folder(fmt::format("{}/{}", folder, local_rank));
  return folder;
}

std::string LogFolders::make_rank(int rank, int world_size) const {
  if (ranks_.empty()) return {};
  make_private_folders(ranks_);
  std::string folder = fmt::format("{}/rank.{:0{}}", ranks_, rank, std::to_string(world_size - 1).size());
  make_folder(folder);
  return folder;
}

std::string LogFolders::error_file(const std::string& attempt_folder, int local_rank) {
  if (attempt_folder.empty()) return {};
  return fmt::format("{}/{}/error.json", attempt_folder, local_rank);
}

RankStreams plan_streams(const LogOptions& options, const std::string& attempt_folder, int rank, int local_rank,
                         const std::string& role, bool stderr_is_terminal, bool single, bool job_console,
                         const std::string& rank_folder) {
  const bool files = !attempt_folder.empty();
  const bool visible = shown(options, rank, local_rank);
  const bool filtered = options.ranks_filter.has_value() || options.local_ranks_filter.has_value();
  const auto plan = [&](Stream stream, bool redirected, bool teed) {
    const bool out = stream == Stream::out;
    StreamPlan result;
    StreamRoute& route = result.route;
    route.rank = rank;
    route.local_rank = local_rank;
    route.role = role;
    route.stream = stream;
    // Without files, -r has no place to redirect to: the stream stays on the console, as in torchrun.
    if (files && (redirected || teed))
      route.file = rank_folder.empty()
                       ? fmt::format("{}/{}/{}.log", attempt_folder, local_rank, out ? "stdout" : "stderr")
                       : fmt::format("{}/{}", rank_folder, out ? "stdout" : "stderr");
    route.console = visible && (teed || route.file.empty());
    route.prefixed = route.console && (teed || options.timestamps || options.format == LogFormat::json);
    route.filtered_file = files && teed && visible && !(out ? options.stdout_filters : options.stderr_filters).empty();
    result.inherit = route.console && !route.prefixed && route.file.empty() && !(job_console && filtered);
    if (!out) {
      result.inherit = result.inherit && stderr_is_terminal && single;
      route.keep_tail = !result.inherit;
    }
    return result;
  };
  const Streams redirects = options.redirects.of(local_rank);
  const Streams tee = options.tee.of(local_rank);
  return {.out = plan(Stream::out, has_out(redirects), has_out(tee)),
          .err = plan(Stream::err, has_err(redirects), has_err(tee))};
}

std::string fill_prefix_template(std::string_view text, const PrefixValues& values) {
  return fill_template(text, [&values](std::string_view name) -> std::optional<std::string> {
    if (name == "role_name") return std::string{values.role_name};
    if (name == "rank") return std::to_string(values.rank);
    if (name == "local_rank") return std::to_string(values.local_rank);
    return std::nullopt;
  });
}

}  // namespace ddp::launcher
