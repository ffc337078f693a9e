// The consoles of a LogPump: its own standard streams, or the job's, until that is lost.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "logs/console_sink.hpp"
#include "logs/pump_core.hpp"

namespace ddp::launcher {
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
  watch(EPOLL_CTL_ADD, options_.job_console->fd(), EPOLLIN, kJobConsole);
}

PumpCore::Outlet* PumpCore::console_of(const LogStream& stream) {
  const auto found = std::find_if(consoles_.begin(), consoles_.end(),
                                  [&](const Outlet& console) { return console.sink.get() == stream.console(); });
  return found == consoles_.end() ? nullptr : &*found;
}

/// What the job's console has taken; or it is lost.
void PumpCore::read_job_console() {
  control::Connection& connection = *options_.job_console;
  connection.flush();
  for (const control::Message& message : connection.receive()) {
    const auto* taken = std::get_if<control::ConsoleTaken>(&message);
    if (taken != nullptr) job_consoles_[taken->error ? 1 : 0]->taken(taken->messages);
  }
  if (connection.open()) return;
  watch(EPOLL_CTL_DEL, connection.fd(), 0, 0);
  for (RemoteConsole* const console : job_consoles_) console->fall_back();
}

void PumpCore::serve_job_console() {
  control::Connection* const connection = options_.job_console.get();
  if (connection == nullptr || !connection->open() || connection->wants_to_write() == job_console_wants_write_) return;
  job_console_wants_write_ = connection->wants_to_write();
  watch(EPOLL_CTL_MOD, connection->fd(), job_console_wants_write_ ? EPOLLIN | EPOLLOUT : EPOLLIN, kJobConsole);
}

void PumpCore::serve_consoles() {
  for (std::size_t i = 0; i < consoles_.size(); ++i) {
    Outlet& console = consoles_[i];
    if (console.sink->ready()) console.sink->flush();
    const std::optional<int> awaited = console.sink->awaited();
    if (awaited && !console.watched) watch(EPOLL_CTL_ADD, *awaited, EPOLLOUT, kFirstSink + i);
    if (!awaited && console.watched) watch(EPOLL_CTL_DEL, *console.watched, 0, 0);
    console.watched = awaited;
    if (console.paused.empty() || console.sink->queued() > Console::kFullBytes / 2) continue;
    for (const std::size_t index : std::exchange(console.paused, {})) {
      if (!entries_[index].stream->open()) continue;
      watch(EPOLL_CTL_ADD, entries_[index].stream->fd(), EPOLLIN, kFirstStream + index);
      entries_[index].watched = true;
    }
  }
  serve_job_console();
}

}  // namespace ddp::launcher
