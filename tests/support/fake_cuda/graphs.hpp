// Making and destroying graphs.
#pragma once

#include "tests/support/fake_cuda/capture.hpp"

namespace fake_cuda {

/// An empty one. With the lock.
Graph* make_graph();
/// Takes the lock itself: what the graph's work holds is let go of without it.
void destroy_graph(Graph* graph);

}  // namespace fake_cuda
