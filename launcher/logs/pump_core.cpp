#include "logs/pump_core.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/log.hpp"

namespace ddp::launcher {
namespace {

using Clock = LogStream::Clock;
using std::chrono::milliseconds;

constexpr std::size_t kReadBytes = 65'536;  // a pipe's usual capacity
constexpr std::size_t kFlushBytes = 65'536;
constexpr milliseconds kLongestWait = std::chrono::minutes(1);
/// A thread that takes longer hangs in a file system that does not answer.
constexpr milliseconds kThreadPatience = std::chrono::seconds(2);
/// Time for the last words to reach the job's console.
constexpr milliseconds kFarewell = std::chrono::seconds(1);
/// Time between two checks whether the end has become urgent.
constexpr milliseconds kPatienceCheck{100};

}  // namespace

PumpCore::PumpCore(LogPumpOptions options) : options_(std::move(options)), buffer_(kReadBytes) {
  loop_.watch(wake_.fd(), [this] { wake_.clear(); });
  options_.job_console ? make_job_consoles() : make_consoles();
  const OutputFile::Complaint complaint = [this](const std::string& line) { complain(line); };
  if (!options_.stdout_filters.empty() && !options_.filtered_stdout_file.empty())
    filtered_out_.emplace(OutputFile::create(options_.filtered_stdout_file, complaint));
  if (!options_.stderr_filters.empty() && !options_.filtered_stderr_file.empty())
    filtered_err_.emplace(OutputFile::create(options_.filtered_stderr_file, complaint));
}

base::UniqueFd PumpCore::add(const StreamRoute& route) {
  const bool out = route.stream == Stream::out;
  std::optional<OutputFile>& filtered = out ? filtered_out_ : filtered_err_;
  const bool to_filtered = route.filtered_file && filtered;
  if (route.file.empty() && !route.console && !to_filtered && !route.keep_tail) {
    base::UniqueFd nowhere{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
    if (!nowhere) throw base::system_error("opening /dev/null", errno);
    return nowhere;
  }
  StreamTargets targets;
  if (!route.file.empty())
    targets.file.emplace(OutputFile::create(route.file, [this](const std::string& line) { complain(line); }));
  if (route.console) targets.console = out ? out_ : err_;
  targets.of_job = options_.job_console != nullptr;
  if (to_filtered) {
    targets.filtered_file = &*filtered;
    targets.filters = out ? &options_.stdout_filters : &options_.stderr_filters;
  }
  if (route.keep_tail) {
    std::shared_ptr<TailBuffer>& tail = tails_[route.local_rank];
    if (!tail) tail = std::make_shared<TailBuffer>(LogPump::kTailLines, LogPump::kTailBytes);
    targets.tail = tail;
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw base::system_error(fmt::format("making a pipe for the output of rank {}", route.rank), errno);
  base::UniqueFd reading{ends[0]};
  base::UniqueFd writing{ends[1]};
  // only this end: workers expect a blocking standard output
  if (::fcntl(reading.get(), F_SETFL, O_NONBLOCK) != 0)
    throw base::system_error(fmt::format("preparing the pipe of rank {}", route.rank), errno);
  entries_.push_back({.stream = std::make_unique<LogStream>(std::move(reading), route, std::move(targets),
                                                            LineFormat{options_, route}),
                      .owed_bytes = 0});
  ++open_streams_;
  watch_stream(entries_.size() - 1);
  return writing;
}

void PumpCore::complain(const std::string& line) {
  err_->append_line(nullptr, {}, {.text = line, .begins = true, .ends = true});
}

void PumpCore::watch_stream(std::size_t index) {
  loop_.watch(entries_[index].stream->fd(), [this, index] { read_once(index); });
  entries_[index].watched = true;
}

void PumpCore::set_running() {
  const std::lock_guard lock(mutex_);
  running_ = true;
}

void PumpCore::run() noexcept {
  try {
    work();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::error, "passing on the workers' output has ended: {}", error.what());
    for (Entry& entry : entries_) entry.stream->abandon();  // otherwise workers would wait forever
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void PumpCore::work() {
  for (;;) {
    answer_requests();
    if (ending_ && (at_end() || ending_->expired())) break;
    wait();
    show_unfinished_lines();
    serve_consoles();
  }
  if (!at_end()) give_up();
  close_all();
}

void PumpCore::wait() {
  Deadline until = Deadline::after(kLongestWait);
  if (ending_) until = earlier(until, *ending_);
  if (!unfinished_.empty()) until = earlier(until, Deadline{unfinished_.begin()->first});
  // A complaint that arrived while its console was written is still queued.
  const bool at_once =
      std::any_of(consoles_.begin(), consoles_.end(), [](const Outlet& console) { return console.sink->ready(); });
  loop_.run_once(at_once ? Deadline{Deadline::Clock::now()} : until);
}

void PumpCore::read_once(std::size_t index) {
  Entry& entry = entries_[index];
  if (!entry.stream->open()) return;
  Console* const console = entry.stream->console();
  if (console != nullptr && console->full()) {
    pause(index);
    return;
  }
  read_stream(index);
  if (console != nullptr && console->queued() >= kFlushBytes && console->ready()) console->flush();
}

/// Closes the stream at its end or, at the end of the job, once its pipe is read. @return bytes read
std::size_t PumpCore::read_stream(std::size_t index) {
  Entry& entry = entries_[index];
  LogStream& stream = *entry.stream;
  const auto due_before = stream.unfinished_due();
  const std::optional<std::size_t> size = stream.read(buffer_);
  const auto due = stream.unfinished_due();
  if (due && due != due_before) unfinished_.emplace(*due, index);
  const std::size_t owed = std::min(entry.owed_bytes, size.value_or(0));
  entry.owed_bytes -= owed;
  owed_read_ += owed;
  if (!size || (ending_ && entry.owed_bytes == 0)) close_stream(index);
  return size.value_or(0);
}

/// Once its pipe is full, the writer waits for the console.
void PumpCore::pause(std::size_t index) {
  Entry& entry = entries_[index];
  loop_.forget(entry.stream->fd());
  entry.watched = false;
  if (Outlet* const console = console_of(*entry.stream)) console->paused.push_back(index);
}

void PumpCore::drain(std::size_t index, std::size_t bytes) {
  while (bytes > 0 && entries_[index].stream->open()) {
    const std::size_t size = read_stream(index);
    if (size == 0) return;
    bytes -= std::min(bytes, size);
  }
}

void PumpCore::close_stream(std::size_t index) {
  Entry& entry = entries_[index];
  if (!entry.stream->open()) return;
  if (std::exchange(entry.watched, false)) loop_.forget(entry.stream->fd());
  entry.stream->close();
  --open_streams_;
}

void PumpCore::show_unfinished_lines() {
  const auto now = Clock::now();
  while (!unfinished_.empty() && unfinished_.begin()->first <= now) {
    const auto [due, index] = *unfinished_.begin();
    unfinished_.erase(unfinished_.begin());
    LogStream& stream = *entries_[index].stream;
    if (stream.unfinished_due() != due) continue;
    if (stream.pending_bytes() > 0 || stream.console()->full()) {
      stream.put_off_unfinished();
      unfinished_.emplace(*stream.unfinished_due(), index);
    } else {
      stream.show_unfinished();
    }
  }
}

void PumpCore::answer_requests() {
  std::vector<int> local_ranks;
  std::uint64_t asked = 0;
  bool begins_to_end = false;
  const std::uint64_t moved = moved_bytes();
  {
    const std::lock_guard lock(mutex_);
    local_ranks.swap(tail_requests_);
    asked = asked_;
    if (patience_) {
      if (std::exchange(moved_, moved) != moved) moved_at_ = Clock::now();
      begins_to_end = !ending_;
      ending_ = Deadline{moved_at_ + *patience_};
    }
  }
  for (const int local_rank : local_ranks) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const LogStream& stream = *entries_[i].stream;
      // even if a console is full: a pipe holds little
      if (stream.local_rank() == local_rank && stream.has_tail()) drain(i, stream.pending_bytes());
    }
  }
  if (!local_ranks.empty()) {
    const std::lock_guard lock(mutex_);
    answered_ = asked;
    changed_.notify_all();
  }
  if (begins_to_end) begin_end();
}

/// Grows while the pump makes progress towards its end.
std::uint64_t PumpCore::moved_bytes() const {
  std::uint64_t bytes = owed_read_;
  for (const Outlet& console : consoles_) bytes += console.sink->taken_bytes();
  return bytes;
}

void PumpCore::begin_end() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    entry.owed_bytes = entry.stream->pending_bytes();
    if (entry.owed_bytes == 0) close_stream(i);
  }
  serve_consoles();
}

bool PumpCore::at_end() const {
  return open_streams_ == 0 &&
         std::all_of(consoles_.begin(), consoles_.end(), [](const Outlet& console) { return console.sink->idle(); });
}

void PumpCore::give_up() {
  for (Outlet& console : consoles_)
    if (!console.sink->idle()) console.sink->abandon();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    drain(i, entries_[i].owed_bytes);
    close_stream(i);
  }
  for (const Outlet& console : consoles_) {
    if (console.sink->abandoned_bytes() == 0) continue;
    const std::string line = fmt::format(
        "ddprun: {}{} was not read in time: {} bytes of the ranks' output were not written to it",
        options_.job_console ? options_.host + ": " : "", console.sink->name(), console.sink->abandoned_bytes());
    // No reader waits until the job's console has taken this.
    options_.job_console ? base::write_stderr_line(line) : complain(line);
  }
}

void PumpCore::close_all() {
  for (std::size_t i = 0; i < entries_.size(); ++i) close_stream(i);
  for (auto* const filtered : {&filtered_out_, &filtered_err_})
    if (*filtered) (*filtered)->close();
  // Standard error comes last: it may get complaints about a file that standard output feeds.
  out_->flush();
  if (out_ != err_) out_->close();
  err_->flush();
  if (!err_->idle()) err_->flush();
  err_->close();
  if (options_.job_console) options_.job_console->close(Deadline::after(kFarewell));
}

std::string PumpCore::tail(int local_rank) {
  const auto found = tails_.find(local_rank);
  if (found == tails_.end()) return {};
  {
    std::unique_lock lock(mutex_);
    if (running_ && !ended_) {
      const std::uint64_t mine = ++asked_;
      tail_requests_.push_back(local_rank);
      wake_.ring();
      changed_.wait_for(lock, kThreadPatience, [&] { return ended_ || answered_ >= mine; });
    }
  }
  return found->second->text();
}

bool PumpCore::finish(const LogPump::Patience& patience) {
  std::unique_lock lock(mutex_);
  moved_at_ = Clock::now();
  for (;;) {
    lock.unlock();
    const milliseconds now = patience();
    lock.lock();
    if (patience_ != now) {
      patience_ = now;
      wake_.ring();
    }
    if (changed_.wait_for(lock, kPatienceCheck, [&] { return ended_; })) return true;
    if (Clock::now() >= moved_at_ + now + kThreadPatience) return false;
  }
}

// The consoles of a LogPump: its own standard streams, or the job's, until that is lost.

namespace {

constexpr const char* kOutName = "standard output";
constexpr const char* kErrName = "standard error";

}  // namespace

void PumpCore::make_consoles() {
  const auto make = [&](int fd, const char* name) {
    consoles_.push_back(
        {.sink = std::make_unique<ConsoleSink>(fd, name, [this](const std::string& line) { complain(line); }),
         .watched = std::nullopt});
    return consoles_.back().sink.get();
  };
  out_ = make(options_.console_out, kOutName);
  err_ = ConsoleSink::same_target(options_.console_out, options_.console_err) ? out_
                                                                              : make(options_.console_err, kErrName);
}

void PumpCore::make_job_consoles() {
  const auto make = [&](bool error, int fd, const char* name) {
    auto own = [this, fd, name] {
      return std::make_unique<ConsoleSink>(fd, name, [this](const std::string& line) { complain(line); });
    };
    auto remote = std::make_unique<RemoteConsole>(*options_.job_console, options_.epoch, error,
                                                  options_.job_console_window_bytes, name, std::move(own));
    job_consoles_.push_back(remote.get());
    consoles_.push_back({.sink = std::move(remote), .watched = std::nullopt});
    return consoles_.back().sink.get();
  };
  out_ = make(false, options_.console_out, kOutName);
  err_ = make(true, options_.console_err, kErrName);
  loop_.watch(options_.job_console->fd(), [this] { read_job_console(); });
}

PumpCore::Outlet* PumpCore::console_of(const LogStream& stream) {
  const auto found = std::find_if(consoles_.begin(), consoles_.end(),
                                  [&](const Outlet& console) { return console.sink.get() == stream.console(); });
  return found == consoles_.end() ? nullptr : &*found;
}

/// Reads what the job's console has taken, or that it is lost.
void PumpCore::read_job_console() {
  control::Connection& connection = *options_.job_console;
  connection.flush();
  for (const control::Message& message : connection.receive()) {
    const auto* taken = std::get_if<control::ConsoleTaken>(&message);
    if (taken != nullptr) job_consoles_[taken->error ? 1 : 0]->taken(taken->messages);
  }
  if (connection.open()) return;
  loop_.forget(connection.fd());
  for (RemoteConsole* const console : job_consoles_) console->fall_back();
}

void PumpCore::serve_job_console() {
  control::Connection* const connection = options_.job_console.get();
  if (connection == nullptr || !connection->open() || connection->wants_to_write() == job_console_wants_write_) return;
  job_console_wants_write_ = connection->wants_to_write();
  loop_.want_write(connection->fd(), job_console_wants_write_);
}

void PumpCore::serve_consoles() {
  for (std::size_t i = 0; i < consoles_.size(); ++i) {
    Outlet& console = consoles_[i];
    if (console.sink->ready()) console.sink->flush();
    const std::optional<int> awaited = console.sink->awaited();
    if (awaited && !console.watched)
      loop_.watch(*awaited, EPOLLOUT, [this, i](std::uint32_t) { consoles_[i].sink->flush(); });
    if (!awaited && console.watched) loop_.forget(*console.watched);
    console.watched = awaited;
    if (console.paused.empty() || console.sink->queued() > Console::kFullBytes / 2) continue;
    for (const std::size_t index : std::exchange(console.paused, {})) {
      if (!entries_[index].stream->open()) continue;
      watch_stream(index);
    }
  }
  serve_job_console();
}

}  // namespace ddp::launcher
