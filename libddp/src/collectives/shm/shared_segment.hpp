// The memory of a group: an anonymous file (memfd) without a name anywhere, which the kernel frees with its last user.
// Its size is sealed, so that no rank can make another's access fail. A rank's lock on one byte of it shows the others,
// also those in other PID namespaces, that the rank's process lives.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

/// Why this process cannot make such files; empty if it can.
std::string why_no_segments();

class SharedSegment {
 public:
  /// Makes one. Throws Error that names cause and remedy: system, unavailable.
  static SharedSegment create(const SegmentLayout& layout);
  /// The one behind @p file, of another rank. Throws protocol if it is not a sealed file of this size.
  static SharedSegment open(base::UniqueFd file, const SegmentLayout& layout);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) = delete;
  ~SharedSegment();

  int file() const { return file_.get(); }
  SegmentView view() const { return {base_, layout_}; }

  /// Allocates the rank's region, on its own NUMA node, so that a lack of memory is an Error now and no signal later;
  /// then locks the rank's byte.
  void claim(int rank);
  /// Whether the process that has claimed @p rank's region is gone. Not for claims of this process.
  bool abandoned(int rank) const noexcept;

 private:
  SharedSegment(base::UniqueFd file, const SegmentLayout& layout);

  /// The only descriptor of the file in this process: closing any drops the lock (fcntl(2)). What others in the process
  /// do to it, LifeWatch makes up for. Locks of open file descriptions would not: all ranks share one.
  base::UniqueFd file_;
  SegmentLayout layout_;
  std::byte* base_ = nullptr;
};

/// A number that no other process has; forked children have another. It stays where it is.
const std::uint64_t& process_number();

// ---- Which ranks of a group are gone: their processes have ended, or they have closed the group while nothing had
// failed.

class LifeWatch {
 public:
  LifeWatch(const SharedSegment& segment, int rank) : segment_(segment), rank_(rank) {}

  /// This rank takes part from now on.
  void announce();
  /// This rank leaves for good; @p state: closed or resigned. Does nothing in a forked child, and the second time.
  void withdraw(RankState state) noexcept;

  /// The ranks whose processes have ended without closing the group. A system call a rank.
  std::vector<int> dead() const;
  /// Those of @p ranks that are gone in either way.
  std::vector<int> gone(const std::vector<int>& ranks) const;

 private:
  bool has_died(int rank) const;
  bool has_closed(int rank) const;

  const SharedSegment& segment_;
  int rank_;
};

}  // namespace ddp::collectives::shm
