// The accepting side of control connections, as an event loop of its own inside the caller's.
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "control/handshake.hpp"
#include "stream/listening.hpp"

namespace ddp::launcher::control {
namespace {

using Number = stream::Strangers::Number;
using stream::Refusal;

// A source that has so many pending connections gives one up when there are no more descriptors.
constexpr std::size_t kCrowd = 16;
constexpr std::chrono::seconds kLogPause{1};

/// At most half of the descriptors are for strangers.
std::size_t allowed_pending(std::size_t agents) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxPending;
  return static_cast<std::size_t>(std::min<rlim_t>(max_pending(agents), limit.rlim_cur / 2));
}

/// Checks proofs one after the other where that asks another process, so that a munged that hangs does not hold up a
/// job.
class ProofThread {
 public:
  ProofThread() {
    base::start_thread([state = state_] { state->run(); }).detach();
  }
  ProofThread& operator=(ProofThread&&) = delete;
  /// Does not wait for the thread, which may hang for seconds.
  ~ProofThread() {
    const std::lock_guard lock{state_->mutex};
    state_->over = true;
    state_->changed.notify_one();
  }

  void ask(Number number, stream::ProofCheck check) {
    const std::lock_guard lock{state_->mutex};
    state_->checks.emplace_back(number, std::move(check));
    state_->changed.notify_one();
  }
  /// The connection is gone: its check is not made any more, unless it has begun.
  void forget(Number number) {
    const std::lock_guard lock{state_->mutex};
    std::erase_if(state_->checks, [&](const auto& check) { return check.first == number; });
  }
  int fd() const { return state_->wake.fd(); }  ///< readable when take() has something
  std::vector<std::pair<Number, stream::ProofVerdict>> take() {
    const std::lock_guard lock{state_->mutex};
    state_->wake.clear();
    return std::exchange(state_->verdicts, {});
  }

 private:
  struct State {
    const base::WakeEvent wake;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<Number, stream::ProofCheck>> checks;
    std::vector<std::pair<Number, stream::ProofVerdict>> verdicts;
    bool over = false;

    void run() {
      std::unique_lock lock{mutex};
      for (;;) {
        changed.wait(lock, [this] { return over || !checks.empty(); });
        if (over) return;
        const auto [number, check] = std::move(checks.front());
        checks.pop_front();
        lock.unlock();
        stream::ProofVerdict verdict = judge(check);
        lock.lock();
        verdicts.emplace_back(number, std::move(verdict));
        wake.ring();
      }
    }
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct LogLimit {
  Deadline::Clock::time_point again;
  int unlogged = 0;

  void log(const std::string& peer, const std::string& why) {
    if (Deadline::Clock::now() < again) {
      ++unlogged;
      return;
    }
    const std::string more = unlogged > 0 ? fmt::format(" (and {} more since the last such line)", unlogged) : "";
    base::log(base::LogLevel::warning, "refused a connection from {}: {}{}", peer, why, more);
    *this = {.again = Deadline::Clock::now() + kLogPause};
  }
};

stream::Handshake& handshake(stream::Conversation& conversation) {
  return static_cast<stream::Handshake&>(conversation);
}

}  // namespace

struct Listener::Impl {
  const std::shared_ptr<Prover> prover;
  const stream::StrangerLimits limits;
  stream::EventLoop loop;
  LogLimit of_strangers;
  LogLimit of_proofs;  // that do not hold: these lines tell users what to correct
  std::vector<Connection> proven;
  std::unique_ptr<ProofThread> thread;  // where the prover is slow
  stream::Admission admission;

  Impl(std::shared_ptr<Prover> given, stream::Listeners listeners, std::chrono::milliseconds patience,
       std::chrono::milliseconds silence)
      : prover(std::move(given)),
        limits{.most = allowed_pending(0), .patience = patience, .silence = silence, .crowd = kCrowd},
        admission(loop, std::move(listeners.sockets), limits,
                  {.greet =
                       [this](int) {
                         return std::make_unique<stream::Handshake>(kProtocol, [this](auto) { return prover; });
                       },
                   .proven = [this](base::UnsharedFd socket, const sockaddr_storage& from,
                                    auto conversation) { add(std::move(socket), from, handshake(*conversation)); },
                   .refused = [this](const Refusal& refusal) { note(refusal); },
                   .waits = [this](Number number,
                                   auto& conversation) { thread->ask(number, handshake(conversation).check()); },
                   .no_room =
                       [this](const std::string& cause) {
                         of_strangers.log("an agent", cause + "; it will be tried again");
                       }}) {
    if (!prover->slow()) return;
    thread = std::make_unique<ProofThread>();
    loop.watch(thread->fd(), [this] { take_verdicts(); });
  }

  void take_verdicts() {
    for (auto& [number, verdict] : thread->take()) {
      stream::Conversation* const conversation = admission.find(number);
      if (conversation == nullptr) continue;
      handshake(*conversation).conclude(std::move(verdict));
      admission.resume(number);
    }
  }

  void add(base::UnsharedFd socket, const sockaddr_storage& from, stream::Handshake& shaken) {
    proven.emplace_back(socket.release(), stream::to_text(from), shaken.take_cipher());
  }

  void note(const Refusal& refusal) {
    const stream::Handshake& shaken = handshake(refusal.conversation);
    const bool checked = shaken.stage() == stream::Handshake::Stage::verdict && shaken.refused_proof().empty();
    std::string why = refusal.text;
    if (checked) {
      thread->forget(refusal.number);
      if (refusal.reason == Refusal::Reason::late) {
        why = fmt::format("its proof could not be checked within {} s; does munged on this host hang?",
                          std::chrono::duration<double>(limits.patience).count());
      }
    }
    const bool of_proof = checked || !shaken.refused_proof().empty();
    (of_proof ? of_proofs : of_strangers).log(stream::to_text(refusal.from), why);
  }
};

Listener::Listener(const std::vector<std::string>& addresses, std::uint16_t port, std::shared_ptr<Prover> prover,
                   std::chrono::milliseconds patience, std::chrono::milliseconds silence)
    : impl_(std::make_unique<Impl>(std::move(prover),
                                   stream::listen_on(addresses, port, {.clients = "agents", .names = true}), patience,
                                   silence)) {}

Listener::Listener(const std::string& address, std::uint16_t port, const Secret& secret,
                   std::chrono::milliseconds patience, std::chrono::milliseconds silence)
    : Listener(std::vector{address}, port, job_secret_prover(secret), patience, silence) {}

Listener::~Listener() = default;

void Listener::expect(std::size_t agents) { impl_->admission.allow(allowed_pending(agents)); }

std::uint16_t Listener::port() const {
  const auto& sockets = impl_->admission.sockets();
  return sockets.empty() ? 0 : base::local_port(sockets.front().get());
}

std::vector<std::string> Listener::addresses() const {
  std::vector<std::string> texts;
  for (const base::UnsharedFd& socket : impl_->admission.sockets())
    texts.push_back(stream::to_text(stream::local_address(socket.get())));
  return texts;
}

std::vector<int> Listener::fds() const {
  return impl_->admission.sockets().empty() ? std::vector<int>{} : std::vector<int>{impl_->loop.fd()};
}

std::vector<Connection> Listener::accept_ready() {
  if (impl_->admission.sockets().empty()) return {};
  impl_->loop.run_once(Deadline{Deadline::Clock::now()});
  return std::exchange(impl_->proven, {});
}

void Listener::close() { impl_->admission.close(); }

}  // namespace ddp::launcher::control
