#include "collectives/flight/flight_signal.hpp"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/unique_fd.hpp"
#include "collectives/flight/flight_output.hpp"

namespace ddp::collectives {
namespace {

constexpr std::array<std::pair<std::string_view, int>, 4> kSignals{
    {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP}, {"WINCH", SIGWINCH}}};

std::atomic<int> event{-1};
std::atomic<pid_t> owner{0};

// Only notes that it was called: nothing else is safe here. A forked child has the handler, but not the thread.
void note_signal(int) {
  if (::getpid() != owner.load(std::memory_order_relaxed)) return;
  const int before = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event.load(std::memory_order_relaxed), &one, sizeof(one));
  errno = before;
}

class SignalledDumps {
 public:
  SignalledDumps(std::string name, int number) : name_(std::move(name)), number_(number) {
    event_.reset(::eventfd(0, EFD_CLOEXEC));
    if (!event_) throw base::system_error("making an event for DDP_FLIGHT_SIGNAL", errno);
    event = event_.get();
    owner = ::getpid();
    thread_ = base::start_thread([this] { serve(); });
    struct sigaction handler {};
    handler.sa_handler = &note_signal;
    handler.sa_flags = SA_RESTART;
    sigemptyset(&handler.sa_mask);
    ::sigaction(number_, &handler, nullptr);
  }
  SignalledDumps(const SignalledDumps&) = delete;
  SignalledDumps& operator=(const SignalledDumps&) = delete;
  ~SignalledDumps() {
    ::signal(number_, SIG_IGN);  // one that comes while the process ends must not kill it
    stopping_ = true;
    note_signal(number_);
    thread_.join();
    event = -1;
  }

 private:
  void serve() {
    for (;;) {
      std::uint64_t times = 0;
      if (::read(event_.get(), &times, sizeof(times)) < 0 && errno == EINTR) continue;
      if (stopping_) return;
      write_flight_file(fmt::format("SIG{}", name_));
    }
  }

  const std::string name_;
  const int number_;
  std::atomic<bool> stopping_{false};
  base::UniqueFd event_;
  std::thread thread_;
};

}  // namespace

void obey_flight_signal(const base::Environment& environment) {
  static std::mutex mutex;
  static std::unique_ptr<SignalledDumps> dumps;
  const std::string name = environment.text("DDP_FLIGHT_SIGNAL");
  const std::lock_guard lock(mutex);
  if (name.empty() || dumps) return;
  const auto reject = [&](ErrorCode code, std::string cause, std::string hint) {
    throw Error{{.code = code,
                 .attempted = "obeying the environment variable DDP_FLIGHT_SIGNAL",
                 .cause = std::move(cause),
                 .hint = std::move(hint)}};
  };
  if (environment.text("DDP_FLIGHT_DIR").empty()) {
    reject(ErrorCode::invalid_argument, "DDP_FLIGHT_DIR is not set", "set DDP_FLIGHT_DIR to a folder for the files");
  }
  int number = 0;
  for (const auto& [word, value] : kSignals) number = word == name ? value : number;
  struct sigaction current {};
  ::sigaction(number, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 || (current.sa_handler != SIG_DFL && current.sa_handler != SIG_IGN)) {
    reject(ErrorCode::conflict, fmt::format("the program handles SIG{} itself", name), "choose another signal");
  }
  dumps = std::make_unique<SignalledDumps>(name, number);
}

}  // namespace ddp::collectives
