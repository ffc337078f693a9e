#include "coordinator/job_console.hpp"

#include <poll.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "logs/console.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::milliseconds kLimitCheck{200};
constexpr int kLongestWaitMs = 60'000;

using Origin = std::pair<int, bool>;  // link, standard error

}  // namespace

/// What both threads use.
class JobConsole::Writer {
 public:
  Writer(int out, int err) {
    const auto make = [this](int fd, const char* name) {
      return std::make_unique<ConsoleSink>(fd, name, [this](const std::string& line) { complain(line); });
    };
    sinks_.push_back(make(out, "standard output"));
    if (!ConsoleSink::same_target(out, err)) sinks_.push_back(make(err, "standard error"));
  }

  // ---- for the event loop's thread

  void give(int link, const control::ConsoleOutput& output) {
    const std::lock_guard lock(mutex_);
    inbox_.emplace_back(link, output);
    idle_ = false;
    wake_.ring();
  }
  std::map<Origin, control::ConsoleTaken> take() {
    taken_event_.clear();
    const std::lock_guard lock(mutex_);
    return std::exchange(taken_, {});
  }
  int taken_fd() const { return taken_event_.fd(); }
  bool idle() const { return idle_; }
  std::uint64_t taken_bytes() const { return taken_bytes_; }
  void begin() { ending_ = ended_ = false; }
  /// @return whether the thread has ended; else it does so as soon as it can
  bool end(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    ending_ = true;
    wake_.ring();
    return changed_.wait_for(lock, patience, [this] { return ended_; });
  }
  /// Takes end() back. @return whether the thread works on; else it has ended
  bool go_on() {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    ending_ = false;
    return true;
  }
  void close() {
    for (const auto& sink : sinks_) sink->close();
  }

  // ---- the other thread

  void run() noexcept {
    for (bool over = false; !over;) {
      try {
        over = !work();
      } catch (const std::exception& error) {
        base::log(base::LogLevel::error, "writing the ranks' output has ended: {}", error.what());
        for (const auto& sink : sinks_) sink->abandon();  // or the ranks would wait forever
      }
    }
  }

 private:
  /// A message that the sink has taken as soon as it has taken so many bytes.
  struct Due {
    std::uint64_t taken_bytes;
    Origin origin;
    int epoch;
  };

  ConsoleSink& sink(bool error) { return *sinks_[error ? sinks_.size() - 1 : 0]; }
  void complain(const std::string& line) {
    sink(true).append_line(nullptr, {}, {.text = line, .begins = true, .ends = true});
  }

  bool work() {
    wait();
    std::deque<std::pair<int, control::ConsoleOutput>> received;
    {
      const std::lock_guard lock(mutex_);
      if (ending_) {  // in one step, or end() could be taken back in between
        ended_ = true;
        changed_.notify_all();
        return false;
      }
      received.swap(inbox_);
    }
    for (const auto& [link, output] : received) {
      ConsoleSink& target = sink(output.error);
      for (const control::ConsolePiece& piece : output.pieces)
        write_piece(target, &owners_[{link, output.error, piece.writer}], piece);
      due_[&target].push_back({.taken_bytes = target.taken_bytes() + target.queued(),
                               .origin = {link, output.error},
                               .epoch = output.epoch});
      if (target.ready()) target.flush();
    }
    for (const auto& sink : sinks_)
      if (sink->ready()) sink->flush();
    tell_taken();
    return true;
  }

  void wait() {
    wake_.clear();
    std::array<pollfd, 3> watched{pollfd{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
    nfds_t count = 1;
    bool at_once = false;
    for (const auto& sink : sinks_) {
      at_once = at_once || sink->ready();  // a complaint that came while it was written
      if (const auto fd = sink->awaited()) watched[count++] = {.fd = *fd, .events = POLLOUT, .revents = 0};
    }
    {
      const std::lock_guard lock(mutex_);
      at_once = at_once || ending_ || !inbox_.empty();
    }
    ::poll(watched.data(), count, at_once ? 0 : kLongestWaitMs);
    for (const auto& sink : sinks_)
      if (sink->awaited()) sink->flush();
  }

  void tell_taken() {
    std::uint64_t bytes = 0;
    bool idle = true;
    const std::lock_guard lock(mutex_);
    for (const auto& sink : sinks_) {
      std::deque<Due>& due = due_[sink.get()];
      while (!due.empty() && (sink->idle() || sink->taken_bytes() >= due.front().taken_bytes)) {
        const Due& front = due.front();
        control::ConsoleTaken& taken = taken_[front.origin];
        if (taken.epoch != front.epoch) taken = {.epoch = front.epoch, .error = front.origin.second, .messages = 0};
        taken.error = front.origin.second;
        ++taken.messages;
        due.pop_front();
      }
      bytes += sink->taken_bytes();
      idle = idle && sink->idle();
    }
    taken_bytes_ = bytes;
    idle_ = idle && inbox_.empty();
    if (!taken_.empty()) taken_event_.ring();
  }

  std::vector<std::unique_ptr<ConsoleSink>> sinks_;  ///< one where both descriptors lead to the same place
  std::map<std::tuple<int, bool, int>, char>
      owners_;  ///< link, standard error, writer: their addresses tell them apart
  std::map<ConsoleSink*, std::deque<Due>> due_;

  base::WakeEvent wake_, taken_event_;
  std::atomic<bool> idle_{true};
  std::atomic<std::uint64_t> taken_bytes_{0};
  std::mutex mutex_;  ///< for what follows
  std::condition_variable changed_;
  std::deque<std::pair<int, control::ConsoleOutput>> inbox_;
  std::map<Origin, control::ConsoleTaken> taken_;
  bool ending_ = false, ended_ = false;
};

JobConsole::JobConsole(stream::EventLoop& loop, int out, int err, OnTaken on_taken, std::chrono::milliseconds patience)
    : loop_(loop), writer_(std::make_shared<Writer>(out, err)), patience_(patience) {
  loop_.watch(writer_->taken_fd(), [this, on_taken = std::move(on_taken)] {
    for (const auto& [origin, taken] : writer_->take()) on_taken(origin.first, taken);
  });
}

JobConsole::~JobConsole() {
  loop_.forget(writer_->taken_fd());
  if (thread_.joinable() && !writer_->end(patience_)) {
    thread_.detach();
  } else {
    if (thread_.joinable()) thread_.join();
    writer_->close();
  }
}

void JobConsole::rest() {
  if (!thread_.joinable() || !writer_->idle()) return;
  if (!writer_->end(patience_) && writer_->go_on()) return;
  thread_.join();
}

void JobConsole::write(int link, const control::ConsoleOutput& output) {
  if (!thread_.joinable()) {
    writer_->begin();
    thread_ = base::start_thread([writer = writer_] { writer->run(); });
  }
  writer_->give(link, output);
}

void JobConsole::finish(const Limit& limit) {
  const auto begin = Deadline::Clock::now();
  auto moved_at = begin;
  std::uint64_t moved = writer_->taken_bytes();
  while (!writer_->idle() && !limit(begin, moved_at).expired()) {
    loop_.run_once(earlier(limit(begin, moved_at), Deadline::after(kLimitCheck)));
    if (std::exchange(moved, writer_->taken_bytes()) != moved) moved_at = Deadline::Clock::now();
  }
}

}  // namespace ddp::launcher
