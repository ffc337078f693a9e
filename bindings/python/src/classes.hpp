// What Python objects of this module hold, and who makes their classes.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include <ddp/error.hpp>
#include <ddp/process_group.hpp>
#include <ddp/world.hpp>

#include <nanobind/nanobind.h>

#include "interpreter.hpp"

namespace ddp::python {

/// A World that Python and calls under way share. In a forked child it is left as it is: session and connections are
/// the parent's.
struct SharedWorld {
  explicit SharedWorld(World made) : world(std::make_unique<World>(std::move(made))) {}
  SharedWorld& operator=(SharedWorld&&) = delete;
  ~SharedWorld() {
    if (::getpid() != process) static_cast<void>(world.release());
  }

  const pid_t process = ::getpid();
  std::unique_ptr<World> world;
  /// Of calls that one thread at a time may make: those of the store.
  std::timed_mutex calls;
};

/// libddp.World.
class PythonWorld {
 public:
  explicit PythonWorld(std::shared_ptr<SharedWorld> shared) : shared_(std::move(shared)) {}
  ~PythonWorld() { close(); }

  /// Throws Error(unavailable) once it is closed.
  const World& facts() const { return *shared()->world; }
  /// The same for what concerns other ranks, and in a forked child.
  std::shared_ptr<SharedWorld> job(std::string_view attempted) const;
  bool closed() const noexcept { return shared_ == nullptr; }
  /// Idempotent. With the GIL, which it gives away.
  void close() noexcept;

 private:
  const std::shared_ptr<SharedWorld>& shared() const;

  std::shared_ptr<SharedWorld> shared_;
};

/// Of the store's calls: as long as World::init waits by default.
constexpr std::chrono::seconds kStoreTimeout{120};

/// libddp.KeyValueStore.
struct PythonStore {
  std::shared_ptr<SharedWorld> shared;
};

/// libddp.Work.
struct PythonWork {
  Work work;
  Deadline latest;                         ///< when a wait without limit ends
  std::vector<std::uint64_t> callbacks{};  ///< numbers in libddp._events of what is to be called at the end
};

/// libddp.ProcessGroup. A handle may be the last one, so it goes without the GIL.
class PythonGroup {
 public:
  explicit PythonGroup(ProcessGroup group) : group_(std::move(group)) {}
  PythonGroup(PythonGroup&&) = default;
  PythonGroup& operator=(PythonGroup&&) = default;
  ~PythonGroup() {
    const WithoutGil released;
    group_.reset();
  }

  ProcessGroup& operator*() { return *group_; }
  ProcessGroup* operator->() { return &*group_; }

 private:
  std::optional<ProcessGroup> group_;
};

void add_checkpoints(nanobind::module_& module);
void add_environment(nanobind::module_& module);
void add_group(nanobind::module_& module);
void add_metrics(nanobind::module_& module);
void add_named(nanobind::module_& module);
void add_object_collectives(nanobind::class_<PythonGroup>& group);
void add_samplers(nanobind::module_& module);
void add_store(nanobind::module_& module);
void add_topology(nanobind::module_& module);
void add_work(nanobind::module_& module);
void add_world(nanobind::module_& module);

}  // namespace ddp::python
