// The rules of capturing streams. Sources: CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture" with
// "Cross-stream Dependencies and Events" and "Prohibited and Unhandled Operations"; driver API,
// cuThreadExchangeStreamCaptureMode.
#include "tests/support/fake_cuda/capture.hpp"

#include <algorithm>

#include "tests/support/fake_cuda/call.hpp"

namespace fake_cuda {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
std::uint64_t last_capture = 0;

CUresult invalidated(const Capture& capture) {
  return capture.invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

void add(std::vector<Node*>& tips, const std::vector<Node*>& more) {
  for (Node* node : more) {
    if (std::find(tips.begin(), tips.end(), node) == tips.end()) tips.push_back(node);
  }
}

/// All nodes that precede @p tips, and the tips.
std::set<const Node*> reached_from(std::vector<Node*> tips) {
  std::set<const Node*> reached;
  while (!tips.empty()) {
    const Node* node = tips.back();
    tips.pop_back();
    if (reached.insert(node).second) tips.insert(tips.end(), node->after.begin(), node->after.end());
  }
  return reached;
}

/// "CU_STREAM_CAPTURE_MODE_GLOBAL: ... If the local thread has an ongoing capture sequence that was not initiated with
/// CU_STREAM_CAPTURE_MODE_RELAXED at cuStreamBeginCapture, or if any other thread has a concurrent capture sequence
/// initiated with CU_STREAM_CAPTURE_MODE_GLOBAL, this thread is prohibited from potentially unsafe API calls.
/// THREAD_LOCAL: ... Concurrent capture sequences in other threads are ignored. RELAXED: The local thread is not
/// prohibited from potentially unsafe API calls."
bool is_protected(const Capture& capture) {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

}  // namespace

/// "When an invalid operation is attempted during stream capture, any associated capture graphs are invalidated."
void invalidate(Capture& capture) { capture.invalidated = true; }

CUresult refuse_unsafe() {
  bool refused = false;
  for (const auto& capture : state().captures) {
    if (!is_protected(*capture)) continue;
    invalidate(*capture);
    refused = true;
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/// "It is invalid to synchronize or query the execution status of a stream which is being captured".
CUresult refuse_captured(Stream& stream) {
  if (stream.capture) {
    const CUresult code = invalidated(*stream.capture);
    invalidate(*stream.capture);
    return code != CUDA_SUCCESS ? code : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (&stream == stream.context->legacy) {
    return refuse_legacy(*stream.context, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, true);
  }
  return CUDA_SUCCESS;
}

/// "When any stream in the same context is being captured, and it was not created with cudaStreamNonBlocking, any
/// attempted use of the legacy stream is invalid."
CUresult refuse_legacy(Context& context, CUresult code, bool invalidating) {
  bool refused = false;
  for (Stream* stream : context.streams) {
    if (!stream->capture || !stream->blocking()) continue;
    refused = true;
    if (invalidating) invalidate(*stream->capture);
  }
  return refused ? code : CUDA_SUCCESS;
}

CUresult capture_node(Stream& stream, std::unique_ptr<Node> node) {
  Capture& capture = *stream.capture;
  if (const CUresult code = invalidated(capture); code != CUDA_SUCCESS) return code;
  node->after = stream.tips;
  stream.tips = {node.get()};
  capture.graph->body->nodes.push_back(std::move(node));
  return CUDA_SUCCESS;
}

CUresult capture_record(Stream& stream, Event& event, unsigned flags) {
  if (flags == CU_EVENT_RECORD_EXTERNAL) {
    auto node = std::make_unique<Node>();
    node->recorded = &event;
    return capture_node(stream, std::move(node));
  }
  if (const CUresult code = invalidated(*stream.capture); code != CUDA_SUCCESS) return code;
  event.capture = stream.capture;
  event.nodes = stream.tips;
  event.marker.reset();
  return CUDA_SUCCESS;
}

bool capture_wait(Stream& stream, Event& event, unsigned flags, CUresult& result) {
  if (!stream.capture && !event.capture) return false;
  if (stream.capture) {
    result = invalidated(*stream.capture);
    if (result != CUDA_SUCCESS) return true;
    if (flags == CU_EVENT_WAIT_EXTERNAL) {
      auto node = std::make_unique<Node>();
      node->awaited = &event;
      result = capture_node(stream, std::move(node));
      return true;
    }
  }
  if (event.capture && !event.capture->active) {
    if (stream.capture) invalidate(*stream.capture);
    result = CUDA_ERROR_CAPTURED_EVENT;
  } else if (!event.capture) {
    if (!event.marker) return true;  // never recorded: nothing to wait for
    // "A dependency would have been created which crosses the capture sequence boundary."
    invalidate(*stream.capture);
    result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  } else if (event.capture->invalidated) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (stream.capture && stream.capture != event.capture) {
    // "It is invalid to merge two separate capture graphs by waiting on a captured event from a stream which is being
    // captured and is associated with a different capture graph than the event."
    invalidate(*stream.capture);
    invalidate(*event.capture);
    result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
  } else if (&stream == stream.context->legacy) {
    invalidate(*event.capture);
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  } else {
    // "When a captured event is waited on by a stream, it places the stream in capture mode if it is not already".
    stream.capture = event.capture;
    add(stream.tips, event.nodes);
  }
  return true;
}

namespace {

CUresult capture_info(CUstream handle, CUstreamCaptureStatus& status, Stream*& stream) {
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  if (stream == stream->context->legacy) {
    // cuStreamIsCapturing: "If called on CU_STREAM_LEGACY ... while a stream in the same context is capturing, it will
    // return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ... The blocking stream capture is not invalidated."
    const CUresult code = refuse_legacy(*stream->context, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, false);
    if (code != CUDA_SUCCESS) return code;
  }
  status = !stream->capture               ? CU_STREAM_CAPTURE_STATUS_NONE
           : stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                          : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  FAKE_CUDA_CALL(cuStreamBeginCapture);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  // "Capture must not be initiated if the stream is CU_STREAM_LEGACY", nor twice.
  if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = ++last_capture;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  capture->graph = make_graph();
  stream->capture = capture;
  stream->tips.clear();
  state().captures.insert(std::move(capture));
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  FAKE_CUDA_CALL(cuStreamEndCapture);
  Lock lock(state().mutex);
  if (graph != nullptr) *graph = nullptr;
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  const auto capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  // "If the mode argument to cuStreamBeginCapture was not CU_STREAM_CAPTURE_MODE_RELAXED, this call must be from the
  // same thread as cuStreamBeginCapture."
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  // "... all streams that were forked must be joined to the origin stream before": CUDA_ERROR_STREAM_CAPTURE_UNJOINED.
  CUresult result = invalidated(*capture);
  const std::set<const Node*> reached = reached_from(stream->tips);
  for (Stream* other : state().streams) {
    if (other->capture != capture) continue;
    const bool joined =
        std::all_of(other->tips.begin(), other->tips.end(), [&](Node* tip) { return reached.contains(tip); });
    if (!joined && result == CUDA_SUCCESS) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    other->capture.reset();
    other->tips.clear();
  }
  capture->active = false;
  state().captures.erase(capture);
  Graph* made = capture->graph;
  lock.unlock();
  // "This call will take the associated streams out of capture mode, but will also return an error value and a NULL
  // graph."
  if (result != CUDA_SUCCESS || graph == nullptr) {
    destroy_graph(made);
  } else {
    *graph = reinterpret_cast<CUgraph>(made);
  }
  return result;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  FAKE_CUDA_CALL(cuStreamIsCapturing);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  CUstreamCaptureStatus found{};
  const CUresult code = capture_info(handle, found, stream);
  if (code == CUDA_SUCCESS) *status = found;
  return code;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, size_t* dependency_count) {
  FAKE_CUDA_CALL(cuStreamGetCaptureInfo);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = capture_info(handle, *status, stream); code != CUDA_SUCCESS) return code;
  if (dependencies != nullptr || dependency_count != nullptr) return CUDA_ERROR_NOT_SUPPORTED;  // not used here
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream->capture->graph);
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  FAKE_CUDA_CALL(cuThreadExchangeStreamCaptureMode);
  std::swap(thread_mode, *mode);
  return CUDA_SUCCESS;
}
}

// The driver API's Graph Management, as far as captured graphs need it, and user objects. Nodes of a launch run one
// after another, in the order of their capture, where a device may run independent ones at once: CUDA promises no
// concurrency.

namespace {

std::set<Graph*>& graphs() {
  static auto& instance = *new std::set<Graph*>;
  return instance;
}
std::set<ExecutableGraph*>& executables() {
  static auto& instance = *new std::set<ExecutableGraph*>;
  return instance;
}
std::set<UserObject*>& user_objects() {
  static auto& instance = *new std::set<UserObject*>;
  return instance;
}

/// Drops references; destroys the object in a thread of its own if none is left. "The destroy callback ... is called
/// asynchronously, must not make CUDA API calls". Call with the lock held.
void release(UserObject& object, unsigned count) {
  object.references -= count;
  if (object.references > 0) return;
  user_objects().erase(&object);
  std::thread([object = &object] {
    {
      const HostFunctionScope scope;
      object->destroy(object->pointer);
    }
    delete object;
  }).detach();
}

void release_all(const std::map<UserObject*, unsigned>& retained) {
  for (const auto& [object, count] : retained) release(*object, count);
}

}  // namespace

Graph* make_graph() {
  auto* graph = new Graph;
  graphs().insert(graph);
  return graph;
}

void destroy_graph(Graph* graph) {
  {
    const Lock lock(state().mutex);
    graphs().erase(graph);
    release_all(graph->retained);
  }
  delete graph;  // perhaps with the last of its work
}

std::size_t live_graphs() { return graphs().size() + executables().size(); }
std::size_t live_user_objects() { return user_objects().size(); }

extern "C" {

CUresult cuGraphInstantiateWithFlags(CUgraphExec* handle, CUgraph graph_handle, unsigned long long flags) {
  FAKE_CUDA_CALL(cuGraphInstantiateWithFlags);
  const Lock lock(state().mutex);
  auto* graph = reinterpret_cast<Graph*>(graph_handle);
  if (!graphs().contains(graph)) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;  // not used here
  for (const auto& capture : state().captures) {
    if (capture->graph == graph) return CUDA_ERROR_ILLEGAL_STATE;
  }
  // "User object references ... are retained by executable graphs that are instantiated from it" (Programming Guide,
  // CUDA User Objects): each counts anew.
  auto* executable = new ExecutableGraph{.body = graph->body, .retained = graph->retained, .last = nullptr};
  for (const auto& [object, count] : executable->retained) object->references += count;
  executables().insert(executable);
  *handle = reinterpret_cast<CUgraphExec>(executable);
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  FAKE_CUDA_CALL(cuGraphLaunch);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(stream_handle, stream); code != CUDA_SUCCESS) return code;
  auto* executable = reinterpret_cast<ExecutableGraph*>(handle);
  if (!executables().contains(executable)) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {  // it would become a child graph, which is not used here
    invalidate(*stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  // "Each launch is ordered behind both any previous work in the stream and any previous launches of hGraphExec."
  std::vector<MarkerPtr> after;
  if (executable->last) after.push_back(executable->last);
  for (const auto& node : executable->body->nodes) {
    if (state().events.contains(node->awaited) && node->awaited->marker) after.push_back(node->awaited->marker);
    MarkerPtr marker = put_in(*stream, node->work, std::move(after));
    after.clear();
    if (state().events.contains(node->recorded)) node->recorded->marker = marker;
    executable->last = std::move(marker);
  }
  return CUDA_SUCCESS;
}

/// "... if it is executing, it is destroyed asynchronously once it completes": its body lives in the launched work.
CUresult cuGraphExecDestroy(CUgraphExec handle) {
  FAKE_CUDA_CALL(cuGraphExecDestroy);
  auto* executable = reinterpret_cast<ExecutableGraph*>(handle);
  {
    Lock lock(state().mutex);
    if (executables().erase(executable) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (executable->last && !executable->last->done) {
      // Its user objects are released when its last launch is over.
      std::thread([retained = executable->retained, last = executable->last] {
        Lock waiting(state().mutex);
        state().progress.wait(waiting, [&] { return last->done; });
        release_all(retained);
      }).detach();
    } else {
      release_all(executable->retained);
    }
  }
  delete executable;
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle) {
  FAKE_CUDA_CALL(cuGraphDestroy);
  auto* graph = reinterpret_cast<Graph*>(handle);
  {
    const Lock lock(state().mutex);
    if (!graphs().contains(graph)) return CUDA_ERROR_INVALID_HANDLE;
  }
  destroy_graph(graph);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectCreate(CUuserObject* handle, void* pointer, CUhostFn destroy, unsigned references,
                            unsigned flags) {
  FAKE_CUDA_CALL(cuUserObjectCreate);
  // "flags: Currently it is required to pass CU_USER_OBJECT_NO_DESTRUCTOR_SYNC"
  if (handle == nullptr || destroy == nullptr || references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock(state().mutex);
  auto* object = new UserObject{.pointer = pointer, .destroy = destroy, .references = references};
  user_objects().insert(object);
  *handle = reinterpret_cast<CUuserObject>(object);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned count) {
  FAKE_CUDA_CALL(cuUserObjectRelease);
  const Lock lock(state().mutex);
  auto* object = reinterpret_cast<UserObject*>(handle);
  if (!user_objects().contains(object) || count == 0 || count > object->references) return CUDA_ERROR_INVALID_VALUE;
  release(*object, count);
  return CUDA_SUCCESS;
}

/// CU_GRAPH_USER_OBJECT_MOVE: "Transfer references from the caller rather than creating new references."
CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count, unsigned flags) {
  FAKE_CUDA_CALL(cuGraphRetainUserObject);
  const Lock lock(state().mutex);
  auto* graph = reinterpret_cast<Graph*>(graph_handle);
  auto* object = reinterpret_cast<UserObject*>(handle);
  if (!graphs().contains(graph) || !user_objects().contains(object) || count == 0) return CUDA_ERROR_INVALID_VALUE;
  graph->retained[object] += count;
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) object->references += count;
  return CUDA_SUCCESS;
}
}

}  // namespace fake_cuda
