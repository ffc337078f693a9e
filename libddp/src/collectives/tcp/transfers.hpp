// Sends and receives of a context. They match by peer and tag, in the order in which they are posted. Small messages go
// at once, and wait in the receiver's memory if no receive is posted yet: at most eager_window_bytes() from one peer.
// Larger ones, and those beyond that bound, are announced and go when the receiver has a place for them. So a
// message that waits for its receive never blocks later ones from being read, and tags may be received in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "collectives/tcp/link.hpp"

namespace ddp::collectives::tcp {

class TcpMesh;

inline constexpr std::size_t kEagerBytes = 64 * 1024;
/// What one peer may have here of messages without a receive: 512 KiB, but of all peers together 64 MiB, as long as
/// that leaves 16 KiB for each. The same on all ranks of a mesh. @param size of the mesh.
std::size_t eager_window_bytes(int size) noexcept;
/// So much credit is given without waiting for a frame that goes the same way.
inline std::size_t credit_bytes(int size) noexcept { return eager_window_bytes(size) / 4; }

/// One send or receive. Owned by its request, and in place until it is done or the mesh has failed.
struct Transfer {
  bool sends = false;
  int peer = -1;  ///< rank of the mesh
  std::uint32_t tag = 0;
  std::uint64_t fingerprint = 0;
  std::byte* data = nullptr;  ///< not written to by sends
  std::size_t bytes = 0;
  std::size_t* left = nullptr;  ///< counted down at the end
  const Operation* operation = nullptr;

  // those of Transfers
  Outgoing outgoing{};
  std::uint64_t number = 0;
  std::size_t received = 0;
};

class Transfers {
 public:
  Transfers(TcpMesh& mesh, std::uint16_t context);

  void post(Transfer& transfer);

  /// Whether it still waits for its peer: a receive until all has come, a send for its grant or for the connection.
  bool waits(const Transfer& transfer) const;

  Placement place(Link& link, const Frame& frame);
  void whole(Link& link, const Frame& frame);

 private:
  struct Unexpected {
    Frame frame;
    std::unique_ptr<std::byte[]> bytes = nullptr;  // of an eager one
    bool complete = false;
    Transfer* taker = nullptr;  // posted while it was arriving
  };
  struct Peer {
    std::deque<Transfer*> receives;    // posted, without a message
    std::list<Unexpected> unexpected;  // without a receive
    std::vector<Transfer*> announced;  // sends that wait for their grant
    std::vector<Transfer*> granted;    // receives that wait for their data
    std::uint64_t last_number = 0;     // of an announced send
    Transfer* arriving = nullptr;      // of the frame whose payload is due
    Unexpected* arriving_early = nullptr;
  };

  Peer& peer(int rank);
  void post_send(Transfer& transfer, Link& link);
  void post_receive(Transfer& transfer, Link& link);
  /// Gives it the message that a rank sent before it left; false if there is none.
  bool receive_from_departed(Transfer& transfer, Link& link);
  Placement place_eager(Peer& peer, Link& link, const Frame& frame);
  Placement place_announced(Peer& peer, Link& link, const Frame& frame);
  Placement place_grant(Peer& peer, Link& link, const Frame& frame);
  Placement place_data(Peer& peer, Link& link, const Frame& frame);
  void grant(Peer& peer, Link& link, Transfer& transfer, std::uint64_t number);
  Transfer* take_receive(Peer& peer, std::uint32_t tag);
  bool fits(const Transfer& transfer, const Frame& frame, Link& link);
  void finish(Transfer& transfer, Link& link);
  void give_credit(Link& link, std::size_t bytes);

  TcpMesh* mesh_;
  std::uint16_t context_;
  std::size_t window_bytes_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank of the mesh
};

}  // namespace ddp::collectives::tcp
