// Ends of operations for who cannot wait: an event loop watches a descriptor and then asks which operations have ended.
// Threads of libddp only post numbers, and never touch Python.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ddp/work.hpp>

namespace ddp::python {

class CompletionQueue {
 public:
  /// Throws Error(system).
  CompletionQueue();

  /// Readable while ended operations wait to be taken. Owned by this object.
  int fileno() const noexcept;

  /// Posts @p number when @p work ends, at once if it has.
  void watch(const Work& work, std::uint64_t number);

  /// The numbers of what has ended since the last call.
  std::vector<std::uint64_t> take();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< operations look whether it is still there
};

}  // namespace ddp::python
