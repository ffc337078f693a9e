// Which ranks of a group share memory. A domain is a node, or a part of one; its lowest rank leads it. Domains are
// numbered by their leaders. Ranks of a domain need not be consecutive, nor domains be of one size.
#pragma once

#include <span>
#include <vector>

namespace ddp::collectives::hierarchy {

class Layout {
 public:
  /// @param labels of all ranks: equal for those in one domain.
  Layout(int rank, std::span<const int> labels);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(domain_of_.size()); }
  int domains() const noexcept { return static_cast<int>(members_.size()); }

  int domain_of(int rank) const { return domain_of_[static_cast<std::size_t>(rank)]; }
  /// Position of a rank in its domain.
  int index_of(int rank) const { return index_of_[static_cast<std::size_t>(rank)]; }
  /// Ascending.
  const std::vector<int>& members(int domain) const { return members_[static_cast<std::size_t>(domain)]; }
  int leader(int domain) const { return members(domain).front(); }
  std::size_t members_of(int domain) const { return members(domain).size(); }
  /// Of the largest domain.
  std::size_t most_members() const noexcept { return most_members_; }

  // This rank's.
  int domain() const { return domain_of(rank_); }
  int index() const { return index_of(rank_); }
  std::size_t neighbours() const { return members_of(domain()); }  ///< with itself
  bool leads() const { return index() == 0; }

 private:
  int rank_;
  std::vector<int> domain_of_;
  std::vector<int> index_of_;
  std::vector<std::vector<int>> members_;
  std::size_t most_members_ = 0;
};

}  // namespace ddp::collectives::hierarchy
