// A rank's connections to the other ranks of a group: its listener, one connection a pair made when first needed, and
// what moves on them. Backends over all or some of the ranks share it; each has a context, whose number is in every
// frame. Nothing moves but in progress(), on the thread that calls it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/backend.hpp>
#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "collectives/tcp/frame.hpp"
#include "collectives/tcp/handshake.hpp"
#include "collectives/tcp/host_probes.hpp"
#include "collectives/tcp/link.hpp"

namespace ddp::collectives::tcp {

class Context;

struct MeshConfig {
  std::string group;  ///< for messages
  int rank = 0;
  int size = 1;
  std::string interface_address;                      ///< of this rank, numeric
  std::chrono::milliseconds connect_timeout{60'000};  ///< until a host accepts a connection
  std::chrono::milliseconds peer_timeout{30'000};     ///< DDP_PEER_TIMEOUT: a host that acknowledges nothing is lost
  std::chrono::milliseconds wait_for_lower{100};      ///< the lower rank of a pair connects; the higher after so long
  std::uint64_t first_ordinal = 0;                    ///< of collectives and announced messages; of tests, near a wrap
};

/// Why a mesh carries nothing any more.
struct MeshFailure {
  Outcome outcome = Outcome::peers_failed;
  std::vector<int> ranks;  ///< of the mesh, ascending
  std::string cause;
  std::string native{};
  std::optional<UnfitMessage> message{};  ///< from the one of `ranks`
  bool elsewhere = false;                 ///< another rank has found it
};

/// One thread at a time calls it, except abort() and rest(), which any may. Ranks are those of the mesh.
class TcpMesh final : private LinkOwner {
 public:
  /// Listens. Throws Error.
  explicit TcpMesh(const MeshConfig& config);
  ~TcpMesh();
  TcpMesh& operator=(TcpMesh&&) = delete;

  int rank() const noexcept { return config_.rank; }
  int size() const noexcept { return config_.size; }
  std::uint64_t first_ordinal() const noexcept { return config_.first_ordinal; }
  /// What the others need; it contains this rank's secret.
  Bytes address() const;
  /// @param addresses by rank. Connects to nobody yet. Throws Error(protocol).
  void connect(const std::vector<Bytes>& addresses);

  /// A context among @p members (ranks of the mesh, of which this is one; the rank in the context is the place in the
  /// list). All members give the same list and a number that no other context of the mesh has. Lives as long as the
  /// mesh.
  Context& open_context(std::uint16_t number, std::vector<int> members);

  /// Moves what can be moved now. @return whether anything did. When a rank is found lost, what the others have
  /// delivered is taken first, so that what needs nothing else is completed; then nothing moves any more.
  bool progress();
  void rest(std::chrono::microseconds limit) noexcept;
  void abort() noexcept;
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  /// @p ranks have failed, as was found by other means: as if progress() had found it. The other ranks are told.
  void report(std::vector<int> ranks, std::string cause);
  /// Says goodbye, so that the others know that this rank is not dead, and closes all connections.
  void close(Deadline deadline) noexcept;

  // for contexts
  /// The connection to @p rank, which is made if there is none; null when it is gone: then the mesh has failed.
  Link* link(int rank);
  /// The closed connection to @p rank if that has left the group; else null.
  Link* departed(int rank);
  void send(int rank, Outgoing& message);
  void expect(int rank, Incoming& message);
  const std::optional<MeshFailure>& failure() const noexcept { return failure_; }
  /// After a failure: ranks that may wait for this one are still connecting, or have yet to take what is before the
  /// news on their connections.
  bool lingers() const;
  /// @p rank and this rank have called different things. @param message from that one.
  void fail_mismatch(int rank, std::string cause, std::optional<UnfitMessage> message = {});
  /// This rank gives up, and tells nobody.
  void give_up(Outcome outcome, std::vector<int> ranks, std::string cause);
  /// Ranks that are not connected yet though they are needed.
  std::string missing() const;

 private:
  struct Peer {
    enum class State : std::uint8_t { opening, open, left, lost };
    Peer(int rank, LinkOwner& owner) : link(rank, owner) {}
    Link link;
    State state = State::opening;
    std::unique_ptr<Outbound> outbound = nullptr;
    Deadline next_attempt = Deadline::after(std::chrono::seconds(0));
    std::chrono::milliseconds wait_for_lower{0};  ///< before the next but one
    std::optional<Deadline> give_up = {};         ///< unless its host accepts by then
    bool ready = true;                            ///< something has happened to outbound
    bool unwatched = false;                       ///< epoll does not tell so
    std::string problem = {};
    bool said_goodbye = false;
    Bytes notice = {};
    Incoming* current = nullptr;  ///< of the frame that is arriving
  };

  Placement place(int rank, const Frame& frame) override;
  void whole(int rank, const Frame& frame) override;
  void ended(int rank, int error, bool garbage) override;

  Peer& need(int rank);
  bool move();
  bool sweep();
  void drain();
  void admit();
  void advance_opening();
  void open(Peer& peer, base::UniqueFd socket);
  /// @param culprit the rank to be named; without one, the peer.
  void mark_lost(Peer& peer, std::string cause, std::string native, std::optional<int> culprit = {});
  void fail(MeshFailure failure, int counterpart);
  void conclude();
  void notify(Peer& peer);
  void watch(Link& link);

  MeshConfig config_;
  std::optional<MeshIdentity> identity_;
  Key secret_{};
  std::unique_ptr<Admission> admission_;
  HostProbes probes_;
  base::UniqueFd poller_;
  base::WakeEvent wake_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null before it is needed
  std::vector<Peer*> open_;
  std::vector<Peer*> opening_;
  std::map<std::uint16_t, std::unique_ptr<Context>> contexts_;
  std::optional<MeshFailure> trouble_;  // found, while what has been delivered is taken
  std::optional<MeshFailure> failure_;
  int counterpart_ = -1;  // of a mismatch
  Deadline linger_until_ = Deadline::after(std::chrono::seconds(0));
  Deadline notify_until_ = linger_until_;
  unsigned calls_ = 0;  // of progress
  std::atomic<bool> aborted_{false};
  std::atomic<bool> look_{true};  // something has happened on a descriptor
};

}  // namespace ddp::collectives::tcp
