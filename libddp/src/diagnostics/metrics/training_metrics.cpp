#include "diagnostics/metrics/training_metrics.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/unique_fd.hpp"

namespace ddp::diagnostics {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestName = 128;

/// As the page shows it, so that two that look the same there are found.
std::optional<std::string> label_of(const json& value) {
  if (!value.is_string()) return std::nullopt;
  std::string text = value.get<std::string>();
  if (text.empty() || text.size() > kLongestName) return std::nullopt;
  std::replace_if(
      text.begin(), text.end(), [](char letter) { return letter < ' ' || letter > '~'; }, '?');
  return text;
}

std::optional<double> seconds_of(const json& value) {
  if (!value.is_number()) return std::nullopt;
  const auto seconds = value.get<double>();
  return std::isfinite(seconds) && seconds >= 0 ? std::optional{seconds} : std::nullopt;
}

std::optional<TrainingSeries> series_of(const json& entry) {
  if (!entry.is_array() || entry.size() != 7 || !entry[2].is_number_unsigned()) return std::nullopt;
  const auto type = label_of(entry[0]), name = label_of(entry[1]);
  const auto sum = seconds_of(entry[3]);
  if (!type || !name || !sum) return std::nullopt;
  TrainingSeries series{.type = *type, .name = *name, .count = entry[2].get<std::uint64_t>(), .sum_s = *sum};
  for (std::size_t i = 0; i < series.quantiles_s.size(); ++i) {
    const auto quantile = seconds_of(entry[4 + i]);
    if (!quantile) return std::nullopt;
    series.quantiles_s.at(i) = *quantile;
  }
  return series;
}

}  // namespace

TrainingMetrics parse_training_metrics(std::string_view text) {
  const json document = text.size() > kMostTrainingBytes ? json() : json::parse(text, nullptr, false);
  const auto list = document.is_object() ? document.find("series") : document.end();
  if (!document.is_object() || list == document.end() || !list->is_array()) return {.refused = 1};
  TrainingMetrics metrics;
  std::set<std::pair<std::string, std::string>> seen;
  for (const json& entry : *list) {
    auto series = series_of(entry);
    // Prometheus refuses a page that has the same line twice.
    if (series && seen.size() < kMostTrainingSeries && seen.emplace(series->type, series->name).second) {
      metrics.series.push_back(std::move(*series));
    } else {
      ++metrics.refused;
    }
  }
  return metrics;
}

namespace {

namespace fs = std::filesystem;

// As for flight recorders: programs that will have one have it soon, and most never do.
constexpr std::chrono::seconds kLongestSearchPause{30};

bool has_the_name(const fs::path& descriptor) {
  std::error_code ignored;
  return fs::read_symlink(descriptor, ignored).native() == fmt::format("/memfd:{} (deleted)", kTrainingMemoryName);
}

/// Nothing where there is no such memory, or its writer can still change it.
std::optional<std::string> read_memory(const std::string& path) {
  if (!has_the_name(path)) return std::nullopt;
  const base::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!file) return std::nullopt;
  constexpr int kComplete = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  struct stat facts {};
  if (seals < 0 || (seals & kComplete) != kComplete || ::fstat(file.get(), &facts) != 0) return std::nullopt;
  std::string text(std::min(static_cast<std::size_t>(std::max<off_t>(facts.st_size, 0)), kMostTrainingBytes + 1), '\0');
  const ssize_t read = ::pread(file.get(), text.data(), text.size(), 0);
  if (read != static_cast<ssize_t>(text.size())) return std::nullopt;
  return text;
}

struct Found {
  std::string path;
  std::string text;
};

/// The first one that is complete: the writer makes the next one beside the current one.
std::optional<Found> find_in(const std::string& proc, pid_t pid) {
  std::error_code status;
  for (fs::directory_iterator entry{fmt::format("{}/{}/fd", proc, pid), status}, end; !status && entry != end;
       entry.increment(status)) {
    if (auto text = read_memory(entry->path())) return Found{entry->path(), std::move(*text)};
  }
  return std::nullopt;
}

}  // namespace

TrainingMetrics TrainingReader::read(const std::string& proc, const std::vector<pid_t>& processes) {
  if (!path_.empty()) {
    const bool lives = std::find(processes.begin(), processes.end(), pid_) != processes.end();
    if (const auto text = lives ? read_memory(path_) : std::nullopt) return parse_training_metrics(*text);
    path_.clear();
    pause_ = std::chrono::seconds{1};
    search_ = Deadline{Deadline::Clock::time_point{}};
  }
  if (!search_.expired()) return {};
  search_ = Deadline::after(pause_);
  pause_ = std::min(2 * pause_, kLongestSearchPause);
  for (const pid_t pid : processes) {
    auto found = find_in(proc, pid);
    if (!found) continue;
    path_ = std::move(found->path);
    pid_ = pid;
    return parse_training_metrics(found->text);
  }
  return {};
}

}  // namespace ddp::diagnostics
