// Captures of streams into graphs, and the graphs.
#pragma once

#include <map>
#include <thread>

#include "tests/support/fake_cuda/state.hpp"

namespace fake_cuda {

/// One node of a graph: work, or the record of or the wait for an event outside of the graph.
struct Node {
  WorkPtr work;
  Event* recorded = nullptr;
  Event* awaited = nullptr;
  std::vector<Node*> after;
};

/// cuUserObjectCreate: calls its function when nobody refers to it any more.
struct UserObject {
  void* pointer = nullptr;
  CUhostFn destroy = nullptr;
  unsigned references = 0;
};

/// What a graph and those that were instantiated from it share. In order of capture, in which every node comes after
/// those that it depends on.
struct Body {
  std::vector<std::unique_ptr<Node>> nodes;
};

struct Graph {
  std::shared_ptr<Body> body = std::make_shared<Body>();
  std::map<UserObject*, unsigned> retained;
};

struct ExecutableGraph {
  std::shared_ptr<const Body> body;
  std::map<UserObject*, unsigned> retained;
  MarkerPtr last;  ///< of its last launch
};

struct Capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  Graph* graph = nullptr;
  bool active = true;
  bool invalidated = false;
};

/// For calls that are not safe while streams are captured: what they return. With the lock.
CUresult refuse_unsafe();
/// For calls that touch a stream in a way that cannot be captured: invalidates its capture. With the lock.
CUresult refuse_captured(Stream& stream);
/// For use of the legacy stream, and of the whole context. With the lock.
CUresult refuse_legacy(Context& context, CUresult code, bool invalidate);
/// Adds a node after the stream's last. With the lock.
CUresult capture_node(Stream& stream, std::unique_ptr<Node> node);
void invalidate(Capture& capture);

/// cuStreamWaitEvent where the stream or the event is captured; true if it was.
bool capture_wait(Stream& stream, Event& event, unsigned flags, CUresult& result);
/// cuEventRecord in a captured stream.
CUresult capture_record(Stream& stream, Event& event, unsigned flags);

/// What is not destroyed: graphs that are the program's, and executable ones.
std::size_t live_graphs();
std::size_t live_user_objects();

// Making and destroying graphs.

/// An empty one. With the lock.
Graph* make_graph();
/// Takes the lock itself: what the graph's work holds is let go of without it.
void destroy_graph(Graph* graph);

}  // namespace fake_cuda
