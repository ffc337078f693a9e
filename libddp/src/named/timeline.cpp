#include "named/timeline.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "named/comparison.hpp"

namespace ddp::named {
namespace {

// Beside the threads of steps and buckets that `ddp-info trace` merges.
constexpr std::uint64_t kFirstThread = 1U << 20U;
constexpr std::string_view kClosing = "\n]\n";

struct Words {
  std::string_view upper;
  std::string_view lower;
};

Words words_of(Kind kind) {
  constexpr std::array<Words, 8> kWords{{{"ALLREDUCE", "allreduce"},
                                         {"ALLGATHER", "allgather"},
                                         {"BROADCAST", "broadcast"},
                                         {"ALLTOALL", "alltoall"},
                                         {"REDUCESCATTER", "reducescatter"},
                                         {"BARRIER", "barrier"},
                                         {"ADD_PROCESS_SET", "add_process_set"},
                                         {"REMOVE_PROCESS_SET", "remove_process_set"}}};
  return kWords.at(static_cast<std::size_t>(kind));
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// As Horovod calls it: "allreduce.loss"; without a name "allreduce.noname", and "allreduce.noname 2" beside it.
std::string title_of(const Key& key, std::size_t place) {
  const std::string prefix = fmt::format("{}.", words_of(key.kind).lower);
  std::string name = key.name.starts_with(prefix) ? key.name : prefix + key.name;
  if (key.number > 0 && name.ends_with('.')) name.pop_back();
  return place == 0 ? name : fmt::format("{} {}", name, place + 1);
}

int write_at(int fd, std::string_view text, std::int64_t offset) {
  while (!text.empty()) {
    const ssize_t wrote = ::pwrite(fd, text.data(), text.size(), offset);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote == 0 ? EIO : errno;
    text.remove_prefix(static_cast<std::size_t>(wrote));
    offset += wrote;
  }
  return 0;
}

}  // namespace

Timeline::Timeline(std::string file, bool mark_exchanges)
    : file_(std::move(file)),
      mark_exchanges_(mark_exchanges),
      fd_(::open(file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  const std::string attempted = fmt::format("writing the timeline '{}' on rank 0", file_);
  if (!fd_) throw base::system_error(attempted, errno, "name a file in a folder that rank 0 may write to");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string first = fmt::format(
      "[\n{{\"name\": \"timeline\", \"ph\": \"M\", \"pid\": 0, \"args\": {{\"start_time_since_epoch_in_micros\": "
      "{}}}}}",
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  if (const int error = write_at(fd_.get(), first + std::string(kClosing), 0))
    throw base::system_error(attempted, error, "name a file in a folder that rank 0 may write to");
  end_ = static_cast<std::int64_t>(first.size());
}

void Timeline::set_clock(int rank, std::int64_t asked, std::int64_t answered, std::int64_t heard) {
  const std::lock_guard lock(mutex_);
  const std::int64_t possible = (heard - asked) / 2;
  const std::int64_t ahead = answered - (asked + possible);
  moved_[rank] = ahead > possible || ahead < -possible ? -ahead : 0;  // else the clocks may be equal
}

Timeline::Row& Timeline::row_of(int rank, const Key& key, std::int64_t begin) {
  std::vector<Row>& rows = rows_[{rank, series_of(key)}];
  if (key.number == 0 && !rows.empty()) return rows.front();  // a name is under way once
  const auto ended = std::find_if(rows.begin(), rows.end(), [begin](const Row& row) { return row.end <= begin; });
  if (ended != rows.end()) return *ended;
  std::uint64_t& count = counts_[rank];
  if (count == 0)
    add_text(fmt::format(R"({{"name": "process_name", "ph": "M", "pid": {0}, "args": {{"name": "rank {0}"}}}})", rank));
  rows.push_back({.thread = kFirstThread + count++});
  add_text(fmt::format(R"({{"name": "thread_name", "ph": "M", "pid": {}, "tid": {}, "args": {{"name": {}}}}})", rank,
                       rows.back().thread, quoted(title_of(key, rows.size() - 1))));
  return rows.back();
}

void Timeline::add_text(const std::string& event) { text_ += ",\n" + event; }

void Timeline::add_event(int rank, std::uint64_t thread, const std::string& name, std::int64_t start, std::int64_t end,
                         std::uint64_t number) {
  add_text(fmt::format(R"({{"name": "{}", "ph": "X", "pid": {}, "tid": {}, "ts": {}, "dur": {}{}}})", name, rank,
                       thread, start, end - start,
                       number > 0 ? fmt::format(R"(, "args": {{"number": {}}})", number) : std::string{}));
}

void Timeline::add(int rank, const std::vector<Span>& spans, std::uint64_t dropped) {
  const std::lock_guard lock(mutex_);
  const std::int64_t moved = moved_[rank];
  for (const Span& span : spans) {
    Row& row = row_of(rank, span.key, span.submitted + moved);
    const std::string kind(words_of(span.key.kind).upper);
    std::int64_t last = row.end;
    // in order, and behind the row's last one, whatever became of the clock
    const auto at = [&](std::int64_t time) { return last = std::max(last, time + moved); };
    const std::int64_t submitted = at(span.submitted);
    const std::int64_t agreed = at(span.agreed);
    const std::int64_t started = at(span.started);
    const std::int64_t packed = at(span.packed);
    const std::int64_t exchanged = at(span.exchanged);
    const std::int64_t done = at(span.done);
    row.end = done;
    const auto add = [&](const std::string& name, std::int64_t start, std::int64_t end) {
      add_event(rank, row.thread, name, start, end, span.key.number);
    };
    add("NEGOTIATE_" + kind, submitted, agreed);
    add(kind, agreed, done);
    if (span.started == 0) continue;
    if (mark_exchanges_ && span.first)
      add_text(fmt::format(R"({{"name": "CYCLE_START", "ph": "i", "s": "p", "pid": {}, "tid": {}, "ts": {}}})", rank,
                           row.thread, started));
    add("QUEUE", agreed, started);
    if (span.fused) add("MEMCPY_IN_FUSION_BUFFER", started, packed);
    add("DDP_" + kind, span.fused ? packed : started, span.fused ? exchanged : done);
    if (span.fused) add("MEMCPY_OUT_FUSION_BUFFER", exchanged, done);
  }
  if (dropped > 0 && !spans.empty())
    add_text(fmt::format(R"({{"name": "{} operations before are missing", "ph": "i", "s": "p", "pid": {}, "tid": 0, )"
                         R"("ts": {}}})",
                         dropped, rank, spans.front().submitted + moved));
}

void Timeline::write() {
  const std::lock_guard writing(writing_);
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text.swap(text_);
  }
  if (text.empty() || failed_) return;
  const auto more = static_cast<std::int64_t>(text.size());
  text += kClosing;
  if (const int error = write_at(fd_.get(), text, end_)) {
    failed_ = true;
    write_at(fd_.get(), kClosing, end_);
    const auto whole = end_ + static_cast<std::int64_t>(kClosing.size());
    const bool cut = ::ftruncate(fd_.get(), whole) == 0;
    base::log(base::LogLevel::warning, "writing the timeline '{}' failed: {}; {}", file_, base::errno_text(error),
              cut ? "it ends here" : "its end is damaged");
    return;
  }
  end_ += more;
}

}  // namespace ddp::named
