#include "collectives/tcp/host_probes.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace ddp::collectives::tcp {
namespace {

void set(int socket, int level, int option, int value) { ::setsockopt(socket, level, option, &value, sizeof value); }

}  // namespace

void HostProbes::probe(int socket) const {
  constexpr int kProbes = 3;
  const int seconds = std::max(1, static_cast<int>(limit_.count() / 1000 / (kProbes + 1)));
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
}

/// The host may have closed the connection in favour of others without this one learning of it, when the reset was
/// lost: a probe asks. For a listener that had no room, the kernel's questions would soon be a minute apart: a new
/// attempt asks at once.
void HostProbes::attempt(int socket) const {
  constexpr int kSynRetries = 2;    // 7 s in all
  constexpr int kMostProbes = 127;  // of tcp(7); TCP_USER_TIMEOUT ends it
  const int seconds = static_cast<int>(attempt_interval().count());
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit_.count()));
  set(socket, IPPROTO_TCP, TCP_SYNCNT, kSynRetries);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kMostProbes);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
}

/// A rank sends some 64 probes a second, as long as that is no rarer than those on open connections.
std::chrono::seconds HostProbes::attempt_interval() const {
  constexpr int kProbesPerSecond = 64;
  const auto longest = std::max<std::chrono::seconds::rep>(1, limit_.count() / 1000 / 4);
  return std::chrono::seconds(std::clamp<std::chrono::seconds::rep>(ranks_ / kProbesPerSecond, 1, longest));
}

void HostProbes::opened(const std::string& host, int socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  // It would also end connections to ranks that are alive and do not read for so long (tcp(7): a window of zero).
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  std::vector<int>& sockets = sockets_[host];
  sockets.push_back(socket);
  if (sockets.size() == 1) return probe(socket);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 0);  // an attempt has it
}

void HostProbes::closed(const std::string& host, int socket) {
  std::vector<int>& sockets = sockets_[host];
  const auto found = std::find(sockets.begin(), sockets.end(), socket);
  if (found == sockets.end()) return;
  const bool probed = found == sockets.begin();
  sockets.erase(found);
  if (probed && !sockets.empty()) probe(sockets.front());
}

}  // namespace ddp::collectives::tcp
