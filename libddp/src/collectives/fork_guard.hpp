// Threads and connections do not survive fork(2): what they belonged to must not be touched in the child.
#pragma once

#include <string_view>

namespace ddp::collectives {

/// Remembers in which process it was made. Costs a load to ask.
class ForkGuard {
 public:
  ForkGuard() noexcept;
  /// Whether this is a child of the process that made it.
  bool forked() const noexcept;
  /// Throws Error(unavailable) if it is.
  void check(std::string_view attempted) const;

 private:
  unsigned generation_;
};

}  // namespace ddp::collectives
