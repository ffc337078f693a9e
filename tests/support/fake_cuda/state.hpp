// What the double keeps about devices, contexts, streams and events. All of it is under one mutex, which nobody holds
// while work runs; nothing of it is ever destroyed with the program, since streams' threads outlive the program's
// objects.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/fake_cuda/symbols.hpp"

namespace fake_cuda {

struct Capture;
struct Node;
struct Stream;

/// The end of one piece of work.
struct Marker {
  bool done = false;
  std::chrono::steady_clock::time_point at;
};
using MarkerPtr = std::shared_ptr<Marker>;

enum class WorkKind { kernel, copy, host_function };

/// Something that a stream does; shared with the graphs that do it again.
struct Work {
  std::string label;
  WorkKind kind;
  std::function<CUresult()> run;  ///< what it returns, if not CUDA_SUCCESS, fails the context
};
using WorkPtr = std::shared_ptr<const Work>;

struct Device {
  int number = 0;    ///< among those that the process sees
  int physical = 0;  ///< among the machine's
  int running_kernels = 0;
  std::multiset<int> waiting_priorities;  ///< of streams whose next kernel waits for room on the device
};

/// A primary context: the double has no others.
struct Context {
  Device* device = nullptr;
  int retained = 0;
  CUresult failed = CUDA_SUCCESS;  ///< the sticky error
  std::set<Stream*> streams;
  Stream* legacy = nullptr;  ///< made when first used; not in streams
};

struct Task {
  WorkPtr work;  ///< null: only waits
  MarkerPtr marker;
  std::vector<MarkerPtr> after;
};

struct Stream {
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  int rank = -1;
  std::uint64_t number = 0;
  std::deque<Task> tasks;
  MarkerPtr last;  ///< of the last task put in; null: none yet
  std::condition_variable wake;
  bool paused = false;
  bool closed = false;
  std::shared_ptr<Capture> capture;  ///< the one that it is part of
  std::vector<Node*> tips;           ///< what its next node comes after
  bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  MarkerPtr marker;                  ///< of the last record; null: never recorded
  std::shared_ptr<Capture> capture;  ///< if it was last recorded in a captured stream
  std::vector<Node*> nodes;          ///< what it then stands for
};

struct Settings {
  int concurrent_kernels = 128;  // of one device, compute capability 7.0 and later (Programming Guide, Technical
                                 // Specifications)
  long jitter_seed = 0;          // 0: none
  long jitter_us = 200;
};

struct State {
  std::mutex mutex;
  std::condition_variable progress;  ///< a task has ended, a context failed, a stream was resumed
  Settings settings;
  std::deque<Device> devices;    // deque: addresses stay
  std::deque<Context> contexts;  // by device
  std::set<Stream*> streams;     // live handles
  std::set<Event*> events;
  std::set<std::shared_ptr<Capture>> captures;
  std::uint64_t last_stream = 0;
};
State& state();
using Lock = std::unique_lock<std::mutex>;

/// This thread's current context; null if there is none.
Context* current_context();

/// A context that calls can use: checks that one is current and has not failed. Called with the lock.
CUresult usable_context(Context*& context);
/// Looks up a handle; NULL and CU_STREAM_LEGACY are the current context's. Also checks for failed contexts. With the
/// lock.
CUresult find_stream(CUstream handle, Stream*& stream);
CUresult find_event(CUevent handle, Event*& event);

/// Puts work into a stream, or into the graph that is captured from it. With the lock.
CUresult submit(Stream& stream, WorkPtr work, std::vector<MarkerPtr> after = {}, MarkerPtr* marker = nullptr);
/// The same, but never into a graph.
MarkerPtr put_in(Stream& stream, WorkPtr work, std::vector<MarkerPtr> after);
/// Waits until these are done, or the context has failed, which it returns. Gives up the lock meanwhile.
CUresult wait_for(Lock& lock, const std::vector<MarkerPtr>& markers, const Context& context);
/// What the context's streams have been given so far.
std::vector<MarkerPtr> all_work(const Context& context);
void fail_context(Context& context, CUresult code);

/// The stream whose work this thread runs; null if it is not a stream's.
Stream* running_stream();

}  // namespace fake_cuda
