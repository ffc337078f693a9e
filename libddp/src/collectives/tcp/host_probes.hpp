// How a mesh learns that a host is gone which says nothing: the kernel's keep-alive probes, on one connection to each
// host, and none on the others. 512 ranks of a host that are all connected with each other have 130,000 connections:
// probes on each would overflow the kernel's queues (net.core.netdev_max_backlog: 1000 packets), and a connection ends
// when four in a row are lost.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace ddp::collectives::tcp {

class HostProbes {
 public:
  /// @param limit after which a host that acknowledges no probe is given up.
  /// @param ranks of the mesh.
  HostProbes(std::chrono::milliseconds limit, int ranks) : limit_(limit), ranks_(ranks) {}

  /// A connection of this rank's that the other has not welcomed yet, which may take as long as that computes.
  void attempt(int socket) const;
  /// A connection with a rank of @p host. Data on it may wait for as long as the rank does not read: whether that one
  /// is alive, the group's failure detector asks.
  void opened(const std::string& host, int socket);
  /// Before @p socket is closed: another one to @p host is probed in its place.
  void closed(const std::string& host, int socket);

 private:
  void probe(int socket) const;
  std::chrono::seconds attempt_interval() const;

  std::chrono::milliseconds limit_;
  int ranks_;
  std::map<std::string, std::vector<int>> sockets_;  // by host; the first is probed
};

}  // namespace ddp::collectives::tcp
