// Operations among some or all ranks of a mesh, kept apart from those of its other contexts by a number in every frame.
// Its collectives run one after the other, in the order in which they are posted; so the k-th of one rank matches
// the k-th of every other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include <ddp/operation.hpp>

#include "collectives/tcp/link.hpp"
#include "collectives/tcp/plan.hpp"
#include "collectives/tcp/transfers.hpp"

namespace ddp::collectives::tcp {

class TcpMesh;
struct MeshFailure;

class Context {
 public:
  /// @param members ranks of the mesh, by rank in the context.
  Context(TcpMesh& mesh, std::uint16_t number, std::vector<int> members);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  int mesh_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  /// The given ranks of the mesh as ranks here, ascending; those that are not in it are left out.
  std::vector<int> ranks_here(const std::vector<int>& mesh_ranks) const;
  /// What this rank has received that does not fit, with the ranks here; nothing if the sender is none of them.
  std::optional<UnfitMessage> message_here(const MeshFailure& failure) const;
  Transfers& transfers() noexcept { return transfers_; }

  /// A position in the order of collectives.
  using Ticket = std::uint64_t;
  /// @p operation stays in place until it is done, or the mesh has failed.
  Ticket post(const Operation& operation);
  /// Takes the collectives as far as they go now. @return whether anything moved.
  bool advance();
  bool is_done(Ticket ticket) const noexcept { return static_cast<std::int64_t>(finished_ - ticket) >= 0; }
  /// For the one that runs: whose messages are missing, as ranks here.
  std::vector<int> awaited() const;

  struct Found {
    Placement::Kind kind;
    Incoming* message = nullptr;
  };
  Found find(Link& link, const Frame& frame);

 private:
  void start(const Operation& operation);
  bool step();
  std::array<std::uint64_t, 6> position() const {
    return {started_, next_receive_, next_sink_, next_send_, arrived_, actions_};
  }
  void post_receives(std::vector<ReceiveStep>& steps, std::size_t& next);
  void execute(const Action& action);

  TcpMesh* mesh_;
  std::uint16_t number_;
  std::vector<int> members_;
  int rank_ = 0;
  Transfers transfers_;

  std::deque<const Operation*> waiting_;
  // They may pass the largest number: differences are compared.
  Ticket posted_;
  Ticket started_;
  Ticket finished_;

  // of the collective that runs
  Plan plan_;
  std::uint64_t fingerprint_ = 0;
  std::size_t next_receive_ = 0;
  std::size_t next_sink_ = 0;
  std::size_t next_send_ = 0;
  std::size_t arrived_ = 0;  // the first so many receives
  std::size_t actions_ = 0;  // done
  std::size_t receives_left_ = 0;
  std::size_t sends_left_ = 0;  // of those begun
};

}  // namespace ddp::collectives::tcp
