// A hierarchical backend of each rank of a layout, over boards.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "collectives/hierarchy/hierarchical_backend.hpp"
#include "unit/collectives/hierarchy/board_backend.hpp"

namespace ddp::collectives::testing {

/// The boards of a group.
class BoardHierarchy {
 public:
  BoardHierarchy(std::vector<int> labels, const Board::Options& options, std::size_t segment_bytes)
      : labels_(std::move(labels)), segment_bytes_(segment_bytes) {
    const hierarchy::Layout layout(0, labels_);
    for (int domain = 0; domain < layout.domains(); ++domain) {
      inner_.push_back(std::make_shared<Board>(static_cast<int>(layout.members_of(domain)), options));
    }
    outer_ = std::make_shared<Board>(layout.domains(), options);
    flat_ = std::make_shared<Board>(layout.size(), options);
  }

  std::unique_ptr<Backend> make(int rank) const {
    hierarchy::Layout layout(rank, labels_);
    hierarchy::Parts parts;
    if (layout.neighbours() > 1) parts.inner = std::make_unique<BoardBackend>(inner(layout.domain()), layout.index());
    if (layout.domains() > 1) {
      parts.flat = std::make_unique<BoardBackend>(flat_, rank);
      if (layout.leads()) parts.outer = std::make_unique<BoardBackend>(outer_, layout.domain());
    }
    return std::make_unique<hierarchy::HierarchicalBackend>(std::move(layout), std::move(parts), segment_bytes_);
  }

  /// The rank is gone, for all parts that it is in.
  void kill(int rank) const {
    const hierarchy::Layout layout(rank, labels_);
    inner(layout.domain())->kill(layout.index());
    flat_->kill(rank);
    if (layout.leads()) outer_->kill(layout.domain());
  }

  int violations() const {
    int sum = outer_->violations() + flat_->violations();
    for (const auto& board : inner_) sum += board->violations();
    return sum;
  }

 private:
  const std::shared_ptr<Board>& inner(int domain) const { return inner_[static_cast<std::size_t>(domain)]; }

  std::vector<int> labels_;
  std::size_t segment_bytes_;
  std::vector<std::shared_ptr<Board>> inner_;
  std::shared_ptr<Board> outer_;
  std::shared_ptr<Board> flat_;
};

}  // namespace ddp::collectives::testing
