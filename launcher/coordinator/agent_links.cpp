#include "coordinator/agent_links.hpp"

#include <utility>

namespace ddp::launcher {
namespace {

// For the last message to leave; the loop blocks meanwhile.
constexpr std::chrono::milliseconds kFarewell{200};

}  // namespace

AgentLinks::AgentLinks(EventLoop& loop, OnMessage on_message, OnLost on_lost)
    : loop_(loop), on_message_(std::move(on_message)), on_lost_(std::move(on_lost)) {}

AgentLinks::~AgentLinks() { forget_listener(); }

int AgentLinks::add(control::Connection connection) {
  const int link = next_link_++;
  const auto lost = [this, link](const std::string& why) {
    const std::string peer = this->peer(link);
    links_.erase(link);
    on_lost_(link, peer, why);
  };
  links_.try_emplace(
      link, loop_, std::move(connection), [this, link](const control::Message& message) { on_message_(link, message); },
      lost);
  return link;
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
  for (auto& [link, connection] : links_) connection.send(message);
}

void AgentLinks::drop(int link) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  found->second.close(Deadline::after(kFarewell));
  links_.erase(found);
}

void AgentLinks::set_peer(int link, std::string peer) {
  if (const auto found = links_.find(link); found != links_.end()) found->second.set_peer(std::move(peer));
}

std::string AgentLinks::peer(int link) const {
  const auto found = links_.find(link);
  return found != links_.end() ? found->second.peer() : std::string{};
}

std::optional<Deadline> AgentLinks::next_deadline() const {
  return listener_ ? listener_->next_deadline() : std::nullopt;
}

void AgentLinks::time_passed() {
  if (const auto deadline = next_deadline(); deadline && deadline->expired()) accept_ready();
}

}  // namespace ddp::launcher
