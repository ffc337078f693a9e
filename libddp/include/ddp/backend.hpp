// What a communication library offers so that process groups can run over it. Operations are started and polled, never
// run by blocking: so one thread can drive many, a waiting caller can drive its own without a wake-up, and operations
// on a GPU's streams fit in. Backends may be parts of others: one for the ranks of a node, one between nodes.
//
// A backend is built in, or a plugin: a shared object libddp_<name>.so that exports `ddp_backend_plugin`, loaded when a
// group asks for it by name. tests/support/example_backend.cpp is a small complete one.
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

/// How an operation stands. All but running are final.
enum class Outcome : std::uint8_t {
  running,
  ok,
  timeout,       ///< its deadline passed
  peers_failed,  ///< a process or host is gone, or a connection to it broke
  mismatch,      ///< the ranks called different things
  aborted,       ///< by Backend::abort()
};
std::string_view to_string(Outcome outcome) noexcept;  ///< the enumerator's name

/// A message that does not fit the receive that it has met.
struct UnfitMessage {
  Operation receive;            ///< of this rank, from rank `root` in the group; without memory
  DType sent = DType::float32;  ///< type of the elements that were sent
  std::size_t count = 0;        ///< elements that were sent
};

/// Why an operation did not end with Outcome::ok, as far as its backend knows. The group finds out the rest.
struct Failure {
  std::vector<int>
      ranks{};           ///< in the group, ascending: dead, absent or different ones; empty if the backend cannot tell
  std::string cause;     ///< "connection reset by rank 3"
  std::string native{};  ///< the native code by name: "ECONNRESET (104)"; empty if there is none
  std::optional<UnfitMessage> message{};  ///< of a mismatch: what this rank received
  /// Another rank has found it and knows more, which it reports to the group's members by itself.
  bool elsewhere = false;
};

/// One started operation, or several started as one. Owned by its backend, lent to the group from Backend::init until
/// release. The group calls it from one thread at a time, together with all other members of the same backend except
/// Backend::abort and Backend::rest; the thread may change from call to call. No member blocks or throws, unless it
/// says so.
class Request {
 public:
  /// Starts it. Called once. Requests of a group are posted in issue order, which for collectives is the same on all
  /// ranks; a backend that can do no more at the time notes it, and starts it in a later poll.
  virtual void post() noexcept = 0;
  /// Takes it as far as it goes now: at most some 100 us of copying or arithmetic a call, then it returns running.
  /// Whenever it does not return running, the tensors are not touched any more.
  /// @return timeout if the deadline that init was given has passed; the backend looks at the clock rarely, the group
  /// watches deadlines, too.
  virtual Outcome poll() noexcept = 0;
  /// Why, when poll has returned neither running nor ok.
  virtual Failure failure() const = 0;
  /// For several sends and receives: whether that one still waits for its peer, as far as the backend knows. Asked when
  /// poll has returned running or timeout.
  virtual bool waits(std::size_t /*operation*/) const noexcept { return true; }
  /// Whether its work has begun, which on a device may be long after post. Asked after a poll that returned running.
  virtual bool started() const noexcept { return true; }
  /// Makes what is put into @p stream from now on wait for the end of this operation. Only for backends that are
  /// stream_ordered; may throw Error.
  /// @return false if it has not reached its own stream yet: to be polled, and asked again.
  virtual bool order(const Stream& stream);
  /// The stream in whose capture it has become a part of a graph (CUDA graphs), if it has. Asked when poll has returned
  /// ok. Only of backends that are stream_ordered.
  virtual std::optional<Stream> captured_in() const noexcept { return std::nullopt; }
  /// The group needs it no more; it may be used again. After its end, or after abort().
  virtual void release() noexcept = 0;

 protected:
  Request() = default;
  Request(const Request&) = default;             ///< for derived classes
  Request& operator=(const Request&) = default;  ///< for derived classes
  ~Request() = default;
};

/// What a backend can do. As it is once connected.
struct BackendTraits {
  bool serves_cpu = false;   ///< it takes tensors in the CPU's memory
  bool serves_cuda = false;  ///< it takes tensors on CUDA devices
  /// poll in the caller's own thread is the shortest way to the end: no other thread and no system call stands between.
  bool completes_inline = false;
  /// Nothing moves between polls.
  bool needs_progress = true;
  /// Operations run on streams, which keep their order: all are posted as soon as they are issued, before the call
  /// returns that issues them, and ordered by Request::order.
  bool stream_ordered = false;
  /// A peer's death ends operations by itself, with Outcome::peers_failed.
  bool detects_peer_death = false;
  /// How many collectives may be posted and not over at the same time. Sends and receives do not count: their number is
  /// not limited.
  int concurrent_collectives = 1;
  /// For one that serves CUDA: the ordinal of the one device whose tensors it takes; -1: any.
  int device = -1;
  /// connect() has only prepared it, its first operation connects: a group starts a barrier when it is made, so that
  /// what goes wrong is found out as with any operation.
  bool connects_by_barrier = false;
  /// Groups of some of its ranks are split off it, see Backend::split.
  bool splits = false;
  /// Why it cannot reduce floating point of 8 bits, for the error; null if it can. Every backend can move it.
  const char* no_float8_arithmetic = nullptr;
};

/// What a backend gets at creation.
struct BackendConfig {
  std::string group;              ///< the group's name, unique in the job, the same on all its ranks: for messages
  int rank = 0;                   ///< in the group
  int size = 1;                   ///< ranks of the group
  std::vector<int> nodes;         ///< of each rank: the number of its node in the job, as the launcher says
  std::string interface_address;  ///< of this rank, numeric
  std::chrono::milliseconds connect_timeout = std::chrono::seconds{60};  ///< of a single connection
  /// For a backend that serves CUDA: this rank's device (an ordinal), if the launcher gave it one.
  std::optional<int> device{};
  bool splits_off = false;  ///< it gets what carries it by Backend::split of another
};

/// One rank's end of a group.
///
/// Life: created by its plugin, address(), connect(), operations, abort() or not, close(), destroyed.
/// Every rank gets the same bits from a reduction, and the same inputs give the same bits whenever ranks, sizes and
/// placement are the same.
class Backend {
 public:
  virtual ~Backend() = default;
  /// What it can do; does not change after connect().
  virtual const BackendTraits& traits() const noexcept = 0;

  /// What the others need in order to reach this rank; at most 4 KiB. They get it over the job's key-value store, which
  /// only processes of the job can read: it may contain secrets.
  virtual Bytes address() const = 0;
  /// Reaches all; @p addresses by rank. Collective, called once, blocks until @p deadline at most.
  /// Throws Error; ranks in it are ranks in the group.
  virtual void connect(const std::vector<Bytes>& addresses, Deadline deadline) = 0;

  /// Prepares an operation. @p operations: one, or several that start as one (all sends and receives, or all
  /// collectives, with the same list on all ranks) and end when the last does; they stay valid and in place until
  /// release. The caller has checked the arguments. Does not communicate; ideally allocates nothing.
  virtual Request& init(std::span<const Operation> operations, Deadline deadline) = 0;

  /// Orders later work in @p stream after the work captured so far in @p captured (from Request::captured_in). No
  /// effect once that capture has ended. May throw Error.
  virtual void order_captured(const Stream& captured, const Stream& stream);

  /// Called between two checks by a call that waits for other ranks, or for the device: meanwhile the group continues
  /// with its operations, for which the others may wait, so that all other members may be called. Sleeps briefly;
  /// throws Error once the group has ended.
  using Pause = std::function<void()>;
  static void pause_briefly();  ///< the default Pause: sleeps 0.1 ms

  /// Memory on the device that it exchanges best. Collective, called like init; blocks until @p deadline at most, with
  /// pauses. Throws Error. Default: refuses.
  virtual std::shared_ptr<void> allocate(std::size_t bytes, Deadline deadline, const Pause& pause = pause_briefly);

  /// What moves tensors on the device, for a Reducer's buckets: in a stream of its own, which it has for as long as it
  /// lives, longer than the backend if need be. @param converts else it need not divide and cast, and may move one by
  /// one. Blocks until @p deadline at most, with pauses. Throws Error. Default: refuses.
  virtual std::shared_ptr<TensorExecutor> make_executor(bool converts, Deadline deadline,
                                                        const Pause& pause = pause_briefly);

  /// Makes what carries @p child, a backend for some of this one's ranks, out of its own, before child's connect().
  /// Called on all ranks like init, in the same order; @p child is null on those that are not in it. @p rank: of this
  /// process in child. Blocks until @p deadline at most, with pauses. Throws Error. Only where traits().splits.
  virtual void split(Backend* child, int rank, Deadline deadline, const Pause& pause = pause_briefly);

  /// Makes all current and later operations end with Outcome::aborted at their next poll, and lets no peer change this
  /// rank's memory any more. From any thread, at any time, more than once; never blocks.
  virtual void abort() noexcept = 0;
  /// Ends connections and threads. Blocks until @p deadline at most. No requests are lent any more.
  virtual void close(Deadline deadline) noexcept = 0;

  /// Sleeps until something may have changed for a posted request, at most for @p limit. From any thread, also from
  /// several and during a poll. The group calls it when it has polled in vain for long. Default: sleeps for @p limit.
  virtual void rest(std::chrono::microseconds limit) noexcept;
};

/// Changes with this header; a plugin of another version is refused.
inline constexpr int kBackendVersion = 9;

/// What a plugin exports under the name `ddp_backend_plugin`.
struct BackendPlugin {
  int version;       ///< kBackendVersion
  const char* name;  ///< NAME of libddp_NAME.so
  /// Throws Error.
  std::unique_ptr<Backend> (*create)(const BackendConfig& config);
};

}  // namespace ddp
