// The driver API's Module Management and Execution Control. A kernel is the host function registered by its name; it
// runs in the stream's thread, when the stream reaches it.
#include "tests/support/fake_cuda/modules.hpp"

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "tests/support/fake_cuda/call.hpp"
#include "tests/support/fake_cuda/capture.hpp"
#include "tests/support/fake_cuda/faults.hpp"
#include "tests/support/fake_cuda/memory.hpp"
#include "tests/support/fake_cuda/streams.hpp"

namespace fake_cuda {
namespace {

struct Module;
struct Function {
  Module* module;
  FakeCudaKernel kernel;
};
struct Module {
  Context* context;
  std::map<std::string, Function> functions{};
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, FakeCudaKernel> kernels;
};
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}
std::set<Module*>& modules() {
  static auto& instance = *new std::set<Module*>;
  return instance;
}
std::set<Function*>& functions() {
  static auto& instance = *new std::set<Function*>;
  return instance;
}

}  // namespace

std::size_t live_modules() { return modules().size(); }

bool load_kernel_libraries(const char* files) {
  std::string rest = files == nullptr ? "" : files;
  while (!rest.empty()) {
    const auto end = rest.find(':');
    const std::string file = rest.substr(0, end);
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto listing = reinterpret_cast<decltype(&fake_cuda_kernels)>(dlsym(library, "fake_cuda_kernels"));
    if (listing == nullptr) return false;
    std::size_t count = 0;
    const FakeCudaKernel* kernels = listing(&count);
    fake_cuda_register_kernels(kernels, count);
  }
  return true;
}

extern "C" {

void fake_cuda_register_kernels(const FakeCudaKernel* kernels, std::size_t count) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (std::size_t i = 0; i < count; ++i) all.kernels.insert_or_assign(kernels[i].name, kernels[i]);
}

CUresult cuModuleLoadData(CUmodule* handle, const void* image) {
  FAKE_CUDA_CALL(cuModuleLoadData);
  constexpr unsigned kFatBinary = 0xba55ed50;  // fatbinary_section.h: the images that nvcc makes
  unsigned magic = 0;
  if (handle == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&magic, image, sizeof magic);
  if (magic != kFatBinary) return CUDA_ERROR_INVALID_IMAGE;
  Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  // Loading code can wait for the device, and cannot be captured (Programming Guide, Lazy Loading).
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  if (const CUresult code = wait_for(lock, all_work(*context), *context); code != CUDA_SUCCESS) return code;
  auto* module = new Module{.context = context};
  modules().insert(module);
  *handle = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule handle) {
  FAKE_CUDA_CALL(cuModuleUnload);
  Lock lock(state().mutex);
  auto* module = reinterpret_cast<Module*>(handle);
  if (!modules().contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  const CUresult code = wait_for(lock, all_work(*module->context), *module->context);
  if (modules().erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  for (auto& [name, function] : module->functions) functions().erase(&function);
  delete module;
  return code;
}

CUresult cuModuleGetFunction(CUfunction* handle, CUmodule module_handle, const char* name) {
  FAKE_CUDA_CALL(cuModuleGetFunction);
  const Lock lock(state().mutex);
  auto* module = reinterpret_cast<Module*>(module_handle);
  if (!modules().contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  Registry& all = registry();
  const std::lock_guard kernels_lock(all.mutex);
  const auto kernel = all.kernels.find(name);
  if (kernel == all.kernels.end()) return CUDA_ERROR_NOT_FOUND;
  const auto place = module->functions.try_emplace(name, Function{.module = module, .kernel = kernel->second}).first;
  functions().insert(&place->second);
  *handle = reinterpret_cast<CUfunction>(&place->second);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned, CUstream stream, void** parameters,
                        void** extra) {
  FAKE_CUDA_CALL(cuLaunchKernel);
  // Programming Guide, Technical Specifications per Compute Capability.
  constexpr unsigned kMostBlocks = 0x7fffffff;
  constexpr unsigned kMostBlocksYz = 65535;
  constexpr unsigned long kMostThreads = 1024;
  constexpr unsigned kMostThreadsZ = 64;
  const unsigned long threads = 1ul * block_x * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || grid_x > kMostBlocks || grid_y > kMostBlocksYz ||
      grid_z > kMostBlocksYz || threads > kMostThreads || block_z > kMostThreadsZ || parameters == nullptr ||
      extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  WorkPtr work;
  {
    const Lock lock(state().mutex);
    auto* function = reinterpret_cast<Function*>(handle);
    if (!functions().contains(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (function->module->context != current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    // Parameters are copied by the call.
    const auto* bytes = static_cast<const unsigned char*>(parameters[0]);
    const FakeCudaKernel kernel = function->kernel;
    // In words, so that the struct is aligned.
    auto argument = std::make_shared<std::vector<std::max_align_t>>(kernel.bytes / sizeof(std::max_align_t) + 1);
    std::memcpy(argument->data(), bytes, kernel.bytes);
    work = std::make_shared<const Work>(
        Work{.label = kernel.name, .kind = WorkKind::kernel, .run = [run = kernel.run, argument] {
               run(argument->data());
               return CUDA_SUCCESS;
             }});
  }
  return launch(stream, std::move(work));
}
}

// Streams run queued work: each is a FIFO with a thread of its own. Sources: CUDA C++ Programming Guide, sections
// "Streams", "Default Stream", "Stream Priorities", "Concurrent Kernel Execution"; driver API, "Stream synchronization
// behavior".

namespace {

thread_local Stream* this_thread_runs = nullptr;

bool all_done(const std::vector<MarkerPtr>& markers) {
  for (const MarkerPtr& marker : markers) {
    if (!marker->done) return false;
  }
  return true;
}

/// Whether a kernel may begin: there is room, and none of a more urgent stream waits for it. "Pending work in
/// higher-priority streams takes preference over pending work in low-priority streams."
bool has_room(const Device& device, int priority) {
  return device.running_kernels < state().settings.concurrent_kernels &&
         (device.waiting_priorities.empty() || *device.waiting_priorities.begin() >= priority);
}

CUresult run(Stream& stream, const Work& work, std::minstd_rand& random) {
  const Settings& settings = state().settings;
  if (settings.jitter_seed != 0) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % static_cast<unsigned long>(settings.jitter_us + 1)));
  }
  if (const auto fault = faults().meet("run:" + work.label, stream.rank)) return *fault;
  if (work.kind != WorkKind::host_function) return work.run();
  const HostFunctionScope scope;
  return work.run();
}

void serve(Stream& stream) {
  State& all = state();
  Context& context = *stream.context;
  Device& device = *context.device;
  std::minstd_rand random(static_cast<unsigned>(all.settings.jitter_seed) + static_cast<unsigned>(stream.number));
  this_thread_runs = &stream;
  Lock lock(all.mutex);
  for (;;) {
    stream.wake.wait(lock, [&] { return !stream.tasks.empty() || stream.closed; });
    if (stream.tasks.empty()) break;
    const Task& front = stream.tasks.front();
    const auto released = [&] { return context.failed != CUDA_SUCCESS || !stream.paused; };
    all.progress.wait(lock, [&] { return released() && (context.failed != CUDA_SUCCESS || all_done(front.after)); });
    const bool kernel = front.work && front.work->kind == WorkKind::kernel && context.failed == CUDA_SUCCESS;
    if (kernel) {
      const auto place = device.waiting_priorities.insert(stream.priority);
      all.progress.wait(lock, [&] { return context.failed != CUDA_SUCCESS || has_room(device, stream.priority); });
      device.waiting_priorities.erase(place);
      ++device.running_kernels;
      all.progress.notify_all();  // less urgent ones that find room, too
    }
    Task task = std::move(stream.tasks.front());
    stream.tasks.pop_front();
    CUresult result = CUDA_SUCCESS;
    if (task.work && context.failed == CUDA_SUCCESS) {  // a failed context runs nothing more
      lock.unlock();
      result = run(stream, *task.work, random);
      lock.lock();
    }
    if (kernel) --device.running_kernels;
    if (result != CUDA_SUCCESS) fail_context(context, result);
    task.marker->done = true;
    task.marker->at = std::chrono::steady_clock::now();
    all.progress.notify_all();
    lock.unlock();
    task = {};  // destroys the work's argument, unless a graph has it
    lock.lock();
  }
  lock.unlock();
  delete &stream;
}

}  // namespace

State& state() {
  static State& instance = *new State;
  return instance;
}

Stream* running_stream() { return this_thread_runs; }

Stream* make_stream(Context& context, unsigned flags, int priority) {
  auto* stream = new Stream;
  stream->context = &context;
  stream->flags = flags;
  stream->priority = priority;
  stream->rank = current_rank();
  stream->number = ++state().last_stream;
  std::thread([stream] { serve(*stream); }).detach();
  return stream;
}

Stream& legacy_stream(Context& context) {
  if (context.legacy == nullptr) context.legacy = make_stream(context, CU_STREAM_DEFAULT, 0);
  return *context.legacy;
}

MarkerPtr put_in(Stream& stream, WorkPtr work, std::vector<MarkerPtr> after) {
  // "The legacy default stream is an implicit stream which synchronizes with all other streams in the same CUcontext
  // except for non-blocking streams."
  Context& context = *stream.context;
  const auto follow = [&](const Stream* other) {
    if (other != nullptr && other->last && !other->last->done) after.push_back(other->last);
  };
  if (&stream == context.legacy) {
    for (const Stream* other : context.streams) {
      if (other->blocking()) follow(other);
    }
  } else if (stream.blocking()) {
    follow(context.legacy);
  }
  auto marker = std::make_shared<Marker>();
  stream.last = marker;
  stream.tasks.push_back({.work = std::move(work), .marker = marker, .after = std::move(after)});
  stream.wake.notify_one();
  return marker;
}

CUresult submit(Stream& stream, WorkPtr work, std::vector<MarkerPtr> after, MarkerPtr* marker) {
  if (stream.capture) {
    auto node = std::make_unique<Node>();
    node->work = std::move(work);
    return capture_node(stream, std::move(node));
  }
  if (&stream == stream.context->legacy) {
    const CUresult code = refuse_legacy(*stream.context, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, true);
    if (code != CUDA_SUCCESS) return code;
  }
  const MarkerPtr made = put_in(stream, std::move(work), std::move(after));
  if (marker != nullptr) *marker = made;
  return CUDA_SUCCESS;
}

CUresult wait_for(Lock& lock, const std::vector<MarkerPtr>& markers, const Context& context) {
  state().progress.wait(lock, [&] { return context.failed != CUDA_SUCCESS || all_done(markers); });
  return context.failed;
}

std::vector<MarkerPtr> all_work(const Context& context) {
  std::vector<MarkerPtr> markers;
  for (const Stream* stream : context.streams) {
    if (stream->last) markers.push_back(stream->last);
  }
  if (context.legacy != nullptr && context.legacy->last) markers.push_back(context.legacy->last);
  return markers;
}

void fail_context(Context& context, CUresult code) {
  if (context.failed == CUDA_SUCCESS) context.failed = code;
  state().progress.notify_all();
}

extern "C" {
CUresult fake_cuda_enqueue(CUstream handle, void (*run)(void*), void (*drop)(void*), void* argument) {
  const std::shared_ptr<void> owned(argument, [drop](void* pointer) {
    if (drop != nullptr) drop(pointer);
  });
  const auto work =
      std::make_shared<const Work>(Work{.label = "enqueued", .kind = WorkKind::kernel, .run = [owned, run] {
                                          run(owned.get());
                                          return CUDA_SUCCESS;
                                        }});
  return launch(handle, work);
}

void fake_cuda_fail_context(CUcontext context, CUresult code) {
  const Lock lock(state().mutex);
  fail_context(*reinterpret_cast<Context*>(context), code);
}

static CUresult set_paused(CUstream handle, bool paused) {
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  stream->paused = paused;
  state().progress.notify_all();
  return CUDA_SUCCESS;
}
CUresult fake_cuda_pause_stream(CUstream stream) { return set_paused(stream, true); }
CUresult fake_cuda_resume_stream(CUstream stream) { return set_paused(stream, false); }

FakeCudaLive fake_cuda_live() {
  const std::size_t allocations = memory().live_allocations();
  const Lock lock(state().mutex);
  std::size_t waiting = 0;
  for (const Device& device : state().devices) waiting += device.waiting_priorities.size();
  return {.streams = state().streams.size(),
          .events = state().events.size(),
          .modules = live_modules(),
          .graphs = live_graphs(),
          .allocations = allocations,
          .user_objects = live_user_objects(),
          .waiting_kernels = waiting};
}
}

}  // namespace fake_cuda
