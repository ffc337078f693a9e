// What the double needs of the fake CUDA.
#pragma once

#include <functional>
#include <string>

#include "settings.hpp"

namespace fake_nccl {

/// A thread's current context, and its device.
struct Place {
  void* context = nullptr;
  int device = -1;
  std::string uuid{};
};
/// Empty context: none is current.
Place current_place();

/// Makes a context current, as NCCL's threads do with cudaSetDevice.
class PlaceScope {
 public:
  explicit PlaceScope(void* context);
  PlaceScope& operator=(PlaceScope&&) = delete;
  ~PlaceScope();
};

/// Something that runs on a stream, in its order. In a captured graph, once for each launch of it.
struct StreamWork {
  std::function<void()> run;
  /// It will not run, or not again. Also after run, for what is in no graph.
  std::function<void()> end;
};
/// False: the stream does not take it.
bool enqueue(cudaStream_t stream, StreamWork work);
bool is_capturing(cudaStream_t stream);
/// Whether memory can be touched; if not, the context has failed, as when a device does.
bool touch(const void* memory, std::size_t bytes);

bool allocate(void** memory, std::size_t bytes);
bool release(void* memory);

}  // namespace fake_nccl
