#include "coordinator/agent_links.hpp"

#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace ddp::launcher {
namespace {

// For the last message to leave.
constexpr std::chrono::milliseconds kFarewell{200};
// No event reports acknowledgements.
constexpr std::chrono::milliseconds kFarewellLook{2};

}  // namespace

AgentLinks::AgentLinks(stream::EventLoop& loop, PeerLimits limits, OnMessage on_message, OnLost on_lost)
    : loop_(loop),
      limits_(limits),
      on_message_(std::move(on_message)),
      on_lost_(std::move(on_lost)),
      heartbeat_(loop, limits.beat, [this] { beat(); }) {}

AgentLinks::~AgentLinks() {
  forget_listener();
  for (see_off(); !leaving_.empty(); see_off()) std::this_thread::sleep_for(kFarewellLook);
}

int AgentLinks::add(control::Connection connection) {
  const int link = next_link_++;
  links_.try_emplace(
      link, loop_, std::move(connection), [this, link](const control::Message& message) { on_message_(link, message); },
      [this, link](const std::string& why) { lose(link, why); });
  return link;
}

void AgentLinks::lose(int link, const std::string& why) {
  if (!links_.contains(link)) return;
  Loss loss{.peer = peer(link), .why = why, .silent = is_silent(link), .rested = resting_.erase(link) > 0};
  // Agents then take this process for lost, and leave.
  if (const auto pause = heartbeat_.own_pause(); pause >= limits_.silence()) {
    loss.why += fmt::format(", after this ddprun (pid {}) had not run for {} s (stopped by SIGSTOP?)", ::getpid(),
                            std::chrono::ceil<std::chrono::seconds>(pause).count());
  }
  links_.erase(link);
  on_lost_(link, loss);
}

void AgentLinks::beat() {
  std::map<int, std::chrono::milliseconds> silent;
  for (auto& [link, connection] : links_) {
    connection.beat();
    const auto silence = heartbeat_.silence(connection.last_heard());
    if (silence >= limits_.silence() && !resting_.contains(link)) silent.emplace(link, silence);
  }
  for (const auto& [link, silence] : silent) {
    if (!links_.contains(link)) continue;  // a callback has dropped it
    lose(link,
         fmt::format("nothing has come from it for {} s", std::chrono::ceil<std::chrono::seconds>(silence).count()));
  }
}

void AgentLinks::listen(std::unique_ptr<control::Listener> listener) {
  listener_ = std::move(listener);
  watch_listener();
}

void AgentLinks::stop_listening() {
  forget_listener();
  listener_.reset();
}

void AgentLinks::watch_listener() {
  listener_fds_ = listener_->fds();
  for (const int fd : listener_fds_) loop_.watch(fd, [this] { accept_ready(); });
}

void AgentLinks::forget_listener() {
  for (const int fd : listener_fds_) loop_.forget(fd);
  listener_fds_.clear();
}

void AgentLinks::accept_ready() {
  forget_listener();  // before it closes descriptors
  std::vector<control::Connection> proven = listener_->accept_ready();
  watch_listener();
  for (control::Connection& connection : proven) add(std::move(connection));
}

void AgentLinks::send(int link, const control::Message& message) {
  const auto found = links_.find(link);
  if (found != links_.end()) found->second.send(message);
}

void AgentLinks::send_to_all(const control::Message& message) {
  const control::Encoded once = control::encode_once(message);
  for (auto& [link, connection] : links_) connection.send(once);
}

void AgentLinks::drop(int link) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  leaving_.push_back({.connection = found->second.release(), .limit = Deadline::after(kFarewell)});
  links_.erase(found);
  resting_.erase(link);
  see_off();
}

void AgentLinks::see_off() {
  leaving_.remove_if([](Leaving& each) {
    if (!each.connection.farewell() && !each.limit.expired()) return false;
    each.connection.close(Deadline::after(std::chrono::seconds(0)));
    return true;
  });
}

void AgentLinks::abandon(int link) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  found->second.close(Deadline::after(std::chrono::seconds(0)));
  links_.erase(found);
  resting_.erase(link);
}

std::optional<Heartbeat::Time> AgentLinks::last_heard(int link) const {
  const auto found = links_.find(link);
  return found != links_.end() ? std::optional{found->second.last_heard()} : std::nullopt;
}

bool AgentLinks::is_silent(int link) const {
  const auto heard = last_heard(link);
  return !heard || heartbeat_.silence(*heard) >= limits_.answer;
}

void AgentLinks::set_resting(int link, bool rests) {
  if (rests && links_.contains(link)) resting_.insert(link);
  if (!rests) resting_.erase(link);
}

void AgentLinks::set_peer(int link, std::string peer) {
  if (const auto found = links_.find(link); found != links_.end()) found->second.set_peer(std::move(peer));
}

std::string AgentLinks::peer(int link) const {
  const auto found = links_.find(link);
  return found != links_.end() ? found->second.peer() : std::string{};
}

std::optional<Deadline> AgentLinks::next_deadline() const {
  return leaving_.empty() ? std::nullopt : std::optional{Deadline::after(kFarewellLook)};
}

}  // namespace ddp::launcher
