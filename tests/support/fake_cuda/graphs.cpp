// The driver API's Graph Management, as far as captured graphs need it, and user objects. Nodes of a launch run one
// after another, in the order of their capture, where a device may run independent ones at once: CUDA promises no
// concurrency.
#include "tests/support/fake_cuda/graphs.hpp"

#include "tests/support/fake_cuda/call.hpp"

namespace fake_cuda {
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

/// Gives up references; destroys the object in a thread of its own if none is left. "The destroy callback ... is called
/// asynchronously, must not make CUDA API calls". With the lock.
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
  delete graph;  // maybe with the last of its work
}

std::size_t live_graphs() { return graphs().size() + executables().size(); }
std::size_t live_user_objects() { return user_objects().size(); }

extern "C" {

CUresult cuGraphInstantiateWithFlags(CUgraphExec* handle, CUgraph graph_handle, unsigned long long flags) {
  FAKE_CUDA_CALL(cuGraphInstantiateWithFlags);
  const Lock lock(state().mutex);
  auto* graph = reinterpret_cast<Graph*>(graph_handle);
  if (!graphs().contains(graph)) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;  // nobody here uses any
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
  if (stream->capture) {  // it would become a child graph, which nobody here uses
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
      // Its user objects go when its last launch is over.
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
