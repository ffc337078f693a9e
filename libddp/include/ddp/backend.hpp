// What a communication library implements so that process groups can run over it. Operations are started and polled,
// and never block: one thread can drive many, a waiting caller can drive its own without a wake-up, and operations on
// GPU streams fit in. A backend may be part of another: one for the ranks of a node, one between nodes.
//
// A backend is built in, or a plugin: a shared object libddp_<name>.so that exports `ddp_backend_plugin` and is loaded
// when a group asks for it by name. tests/support/example_backend.cpp is a small, complete example.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>
#include <ddp/operation.hpp>
#include <ddp/tensor_executor.hpp>

namespace ddp {

/// The state of an operation. Every state except running is final.
enum class Outcome : std::uint8_t {
  running,
  ok,
  timeout,       ///< its deadline passed
  peers_failed,  ///< a process or host is gone, or a connection to it broke
  mismatch,      ///< the ranks' calls are not compatible
  aborted,       ///< Backend::abort() was called
};
std::string_view to_string(Outcome outcome) noexcept;  ///< the enumerator's name

/// A message that does not fit the receive that it matched.
struct UnfitMessage {
  Operation receive;            ///< of this rank, from rank `root` in the group; without memory
  DType sent = DType::float32;  ///< type of the elements that were sent
  std::size_t count = 0;        ///< elements that were sent
};

/// Why an operation did not end with Outcome::ok, as far as its backend knows. The group determines the rest.
struct Failure {
  std::vector<int>
      ranks{};           ///< in the group, ascending: ranks that died, are absent or differ; empty if it cannot tell
  std::string cause;     ///< "connection reset by rank 3"
  std::string native{};  ///< the native code by name: "ECONNRESET (104)"; empty if there is none
  std::optional<UnfitMessage> message{};  ///< for a mismatch: what this rank received
  /// Another rank found the failure, knows more about it, and reports it to the group's members itself.
  bool elsewhere = false;
};

/// One started operation, or several started as one. Owned by its backend, lent to the group from Backend::init until
/// release(). The group calls it from one thread at a time, which may change from call to call, and calls no other
/// member of the same backend meanwhile except Backend::abort and Backend::rest. Members neither block nor throw unless
/// they say so.
class Request {
 public:
  /// Starts the operation. Called once. A group posts its requests in issue order, which for collectives is the same on
  /// all ranks; a backend that cannot start another one yet keeps it and starts it in a later poll.
  virtual void post() noexcept = 0;
  /// Advances the operation as far as possible: after at most some 100 us of copying or arithmetic it returns running.
  /// Once it has returned anything else, the backend no longer touches the tensors.
  /// @return timeout if the deadline given to init has passed; the backend reads the clock rarely, since the group
  /// watches deadlines, too.
  virtual Outcome poll() noexcept = 0;
  /// The reason, once poll has returned neither running nor ok.
  virtual Failure failure() const = 0;
  /// For several sends and receives: whether the given one still waits for its peer, as far as the backend knows.
  /// Called after poll has returned running or timeout.
  virtual bool waits(std::size_t /*operation*/) const noexcept { return true; }
  /// Whether its work has begun, which on a device may be long after post. Called after a poll that returned running.
  virtual bool started() const noexcept { return true; }
  /// Makes work that is enqueued in @p stream from now on wait for the end of this operation. Only for backends that
  /// are stream_ordered; may throw Error.
  /// @return false if the operation has not reached its own stream yet: poll it, then call this again.
  virtual bool order(const Stream& stream);
  /// The stream whose capture has made this operation part of a graph (CUDA graphs), if any. Called after poll has
  /// returned ok. Only for backends that are stream_ordered.
  virtual std::optional<Stream> captured_in() const noexcept { return std::nullopt; }
  /// The group no longer needs it; the backend may reuse it. Called after its end, or after abort().
  virtual void release() noexcept = 0;

 protected:
  Request() = default;
  Request(const Request&) = default;             ///< for derived classes
  Request& operator=(const Request&) = default;  ///< for derived classes
  ~Request() = default;
};

/// What a backend can do, as known once it is connected.
struct BackendTraits {
  bool serves_cpu = false;   ///< accepts tensors in the CPU's memory
  bool serves_cuda = false;  ///< accepts tensors on CUDA devices
  /// Polling in the caller's own thread is the shortest way to the end: it needs no other thread and no system call.
  bool completes_inline = false;
  /// Nothing advances between polls.
  bool needs_progress = true;
  /// Operations run on streams, which keep their order: the group posts each operation before the call that issues it
  /// returns, and orders later work after it by Request::order.
  bool stream_ordered = false;
  /// A peer's death ends operations without help, with Outcome::peers_failed.
  bool detects_peer_death = false;
  /// How many collectives may be posted and unfinished at the same time. Sends and receives do not count: their number
  /// is unlimited.
  int concurrent_collectives = 1;
  /// For a backend that serves CUDA: the ordinal of the one device whose tensors it takes; -1: any device.
  int device = -1;
  /// connect() only prepares it, the first operation connects: a new group starts a barrier at once, so that connection
  /// failures are reported like those of any operation.
  bool connects_by_barrier = false;
  /// Groups of some of its ranks can be split off it, see Backend::split.
  bool splits = false;
  /// Why it cannot reduce 8-bit floating point, for the error; null if it can. Every backend can move such data.
  const char* no_float8_arithmetic = nullptr;
};

/// What a backend is created with.
struct BackendConfig {
  std::string group;              ///< the group's name, unique in the job, equal on all its ranks: for messages
  int rank = 0;                   ///< in the group
  int size = 1;                   ///< ranks of the group
  std::vector<int> nodes;         ///< of each rank: its node's number in the job, as the launcher reports it
  std::string interface_address;  ///< of this rank, numeric
  std::chrono::milliseconds connect_timeout = std::chrono::seconds{60};  ///< for a single connection
  /// For a backend that serves CUDA: this rank's device (an ordinal), if the launcher assigned one.
  std::optional<int> device{};
  bool splits_off = false;  ///< its connections come from Backend::split of another backend
};

/// One rank's end of a group.
///
/// Life cycle: created by its plugin, address(), connect(), operations, optionally abort(), close(), destroyed.
/// Every rank gets the same bits from a reduction, and equal inputs give equal bits as long as ranks, sizes and
/// placement are the same.
class Backend {
 public:
  virtual ~Backend() = default;
  /// What it can do; constant after connect().
  virtual const BackendTraits& traits() const noexcept = 0;

  /// What other ranks need to reach this one; at most 4 KiB. They read it from the job's key-value store, which only
  /// processes of the job can read, so it may contain secrets.
  virtual Bytes address() const = 0;
  /// Connects to all ranks; @p addresses by rank. Collective, called once, blocks until @p deadline at most.
  /// Throws Error, whose ranks are ranks in the group.
  virtual void connect(const std::vector<Bytes>& addresses, Deadline deadline) = 0;

  /// Prepares an operation without communicating, ideally without allocating. @p operations: one, or several that start
  /// together (all sends and receives, or all collectives, the same list on all ranks) and end when the last one does;
  /// they stay valid and in place until release. The caller has checked the arguments.
  virtual Request& init(std::span<const Operation> operations, Deadline deadline) = 0;

  /// Orders later work in @p stream after the work captured so far in @p captured (from Request::captured_in). No
  /// effect once that capture has ended. May throw Error.
  virtual void order_captured(const Stream& captured, const Stream& stream);

  /// Called between two checks by a call that waits for other ranks or for the device. Meanwhile the group continues
  /// its operations, for which other ranks may wait, so it may call any other member. Sleeps briefly; throws Error once
  /// the group has ended.
  using Pause = std::function<void()>;
  static void pause_briefly();  ///< the default Pause: sleeps 0.1 ms

  /// Allocates device memory of the kind that the backend exchanges fastest. Collective, called like init; blocks until
  /// @p deadline at most, with pauses. Throws Error. Default: throws Error(unavailable).
  virtual std::shared_ptr<void> allocate(std::size_t bytes, Deadline deadline, const Pause& pause = pause_briefly);

  /// Makes what moves a Reducer's bucket tensors on the device, in a stream of its own that lives as long as the
  /// executor, even longer than the backend. @param converts false: it need not divide or cast, and may move tensors
  /// one by one. Blocks until @p deadline at most, with pauses. Throws Error. Default: throws Error(unavailable).
  virtual std::shared_ptr<TensorExecutor> make_executor(bool converts, Deadline deadline,
                                                        const Pause& pause = pause_briefly);

  /// Derives the connections of @p child, a backend for some of this one's ranks, from its own, before child's
  /// connect(). Called on all ranks like init, in the same order; @p child is null on ranks outside it. @p rank: of
  /// this process in child. Blocks until @p deadline at most, with pauses. Throws Error. Needs traits().splits.
  virtual void split(Backend* child, int rank, Deadline deadline, const Pause& pause = pause_briefly);

  /// Makes all current and later operations end with Outcome::aborted at their next poll; from then on no peer can
  /// change this rank's memory. Callable from any thread, at any time, repeatedly; never blocks.
  virtual void abort() noexcept = 0;
  /// Closes connections and ends threads. Blocks until @p deadline at most. All requests have been released.
  virtual void close(Deadline deadline) noexcept = 0;

  /// Sleeps until something may have changed for a posted request, at most for @p limit. Callable from several threads,
  /// also during a poll. The group calls it after polling in vain for a while. Default: sleeps for @p limit.
  virtual void rest(std::chrono::microseconds limit) noexcept;
};

/// Changes whenever this header does; a plugin of another version is refused.
inline constexpr int kBackendVersion = 9;

/// What a plugin exports under the name `ddp_backend_plugin`.
struct BackendPlugin {
  int version;       ///< kBackendVersion
  const char* name;  ///< NAME of libddp_NAME.so
  /// Throws Error.
  std::unique_ptr<Backend> (*create)(const BackendConfig& config);
};

}  // namespace ddp
