// The work of a LogPump: what its thread does with pipes, files and consoles.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "logs/console.hpp"
#include "logs/log_pump.hpp"
#include "logs/log_stream.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

/// Shared with the thread, so that it outlives a pump whose thread hangs.
class PumpCore {
 public:
  explicit PumpCore(LogPumpOptions options);

  base::UniqueFd add(const StreamRoute& route);
  void set_running();
  void run() noexcept;
  std::string tail(int local_rank);
  /// @return whether the thread has ended
  bool finish(const LogPump::Patience& patience);
  void close_all();

 private:
  struct Outlet {
    std::unique_ptr<Console> sink;
    std::vector<std::size_t> paused{};  ///< streams that wait for it
    std::optional<int> watched;         ///< its descriptor in the loop
  };
  struct Entry {
    std::unique_ptr<LogStream> stream;
    bool watched = false;
    std::size_t owed_bytes = 0;  ///< at the end: what had been in the pipe
  };

  void work();
  void make_consoles();
  void make_job_consoles();
  void complain(const std::string& line);
  void wait();
  void watch_stream(std::size_t index);
  void read_once(std::size_t index);
  std::size_t read_stream(std::size_t index);
  void pause(std::size_t index);
  void drain(std::size_t index, std::size_t bytes);
  void close_stream(std::size_t index);
  void show_unfinished_lines();
  void serve_consoles();
  void read_job_console();
  void serve_job_console();
  void answer_requests();
  std::uint64_t moved_bytes() const;
  void begin_end();
  bool at_end() const;
  void give_up();
  Outlet* console_of(const LogStream& stream);

  LogPumpOptions options_;
  std::vector<Outlet> consoles_;  ///< one where both descriptors lead to the same place
  Console* out_ = nullptr;
  Console* err_ = nullptr;
  std::vector<RemoteConsole*> job_consoles_;  ///< standard output and error, where consoles_ are of the job
  bool job_console_wants_write_ = false;
  std::optional<OutputFile> filtered_out_, filtered_err_;
  std::map<int, std::shared_ptr<TailBuffer>> tails_;  ///< by local rank; complete before the thread starts
  std::vector<Entry> entries_;
  std::size_t open_streams_ = 0;
  std::set<std::pair<LogStream::Clock::time_point, std::size_t>> unfinished_;  ///< streams by unfinished_due()
  std::vector<char> buffer_;
  stream::EventLoop loop_;
  base::WakeEvent wake_;
  std::uint64_t owed_read_ = 0;     ///< bytes of Entry::owed_bytes that have been read
  std::uint64_t moved_ = 0;         ///< moved_bytes() when it was last looked at
  std::optional<Deadline> ending_;  ///< the end is near: when it is given up, unless something moves

  std::mutex mutex_;  ///< for what follows
  std::condition_variable changed_;
  std::vector<int> tail_requests_;
  std::uint64_t asked_ = 0, answered_ = 0;
  std::optional<std::chrono::milliseconds> patience_;  ///< set: the end is near
  LogStream::Clock::time_point moved_at_;              ///< since then: when something last moved
  bool running_ = false, ended_ = false;
};

}  // namespace ddp::launcher
