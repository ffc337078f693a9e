// A group's operations on its device: each is put into a stream, after the caller's work, and watched by events.
//
// NCCL runs without blocking: a call may reach its stream later than it returns, and until then NCCL takes no other for
// the communicator. So one operation is launched at a time, and its end is marked when NCCL has put it into the stream.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/backend.hpp>

#include "collectives/nccl/communicator.hpp"
#include "collectives/nccl/nccl_calls.hpp"
#include "collectives/nccl/registered_memory.hpp"
#include "cuda/context.hpp"
#include "cuda/stream.hpp"

namespace ddp::collectives::nccl {

class NcclQueue;

class NcclRequest final : public Request {
 public:
  explicit NcclRequest(NcclQueue& queue) : queue_(queue) {}
  void post() noexcept override;
  Outcome poll() noexcept override;
  Failure failure() const override;
  bool started() const noexcept override;
  bool order(const Stream& stream) override;
  std::optional<Stream> captured_in() const noexcept override;
  void release() noexcept override;

 private:
  friend class NcclQueue;
  enum class State {
    idle,
    waiting,    ///< for the communicator, or for those before it
    launching,  ///< NCCL puts it into its stream
    in_stream,
    captured,  ///< it is a part of a graph, and over for the group
  };
  bool own_stream() const noexcept { return !operations_.front().in_stream; }

  NcclQueue& queue_;
  std::span<const Operation> operations_;
  Deadline deadline_{Deadline::Clock::time_point{}};
  State state_ = State::idle;
  CUstream stream_ = nullptr;  ///< in which it runs
  bool queued_ = false;        ///< stream_ is the group's own
  std::uint64_t ticket_ = 0;   ///< position in the group's own stream, from 1
  mutable bool started_ = false;
  cuda::Event ready_;  ///< the caller's work before it; of the group's own stream only
  cuda::Event begun_;
  cuda::Event ended_;
};

/// Driven as a backend is.
class NcclQueue {
 public:
  /// @p device: the ordinal. Throws Error.
  NcclQueue(const NcclLibrary& library, int device, const std::string& group);
  NcclQueue& operator=(NcclQueue&&) = delete;
  ~NcclQueue();

  void connect(std::vector<ncclUniqueId> ids, int size, int rank);
  NcclRequest& init(std::span<const Operation> operations, Deadline deadline);
  /// As Backend::split.
  void split(NcclQueue* child, int rank, Deadline deadline, const Backend::Pause& pause);
  /// As Backend::allocate.
  std::shared_ptr<void> allocate(std::size_t bytes, Deadline deadline, const Backend::Pause& pause);
  void abort() noexcept;
  void close(Deadline deadline) noexcept;

  // of requests
  void post(NcclRequest& request) noexcept;
  Outcome poll(NcclRequest& request) noexcept;
  bool started(const NcclRequest& request) noexcept;
  bool order(NcclRequest& request, CUstream stream);
  void order_captured(CUstream captured, CUstream stream);
  void release(NcclRequest& request) noexcept;
  const Failure& failure() const noexcept { return failure_; }

 private:
  using State = NcclRequest::State;

  void accept(NcclRequest& request);
  void advance();
  bool begin();
  bool idle();
  template <class Call>
  void call_with_all(const char* what, const std::string& attempted, Deadline deadline, const Backend::Pause& pause,
                     Call&& call);
  std::optional<ncclResult_t> launch(NcclRequest& request);
  void record_end(NcclRequest& request);
  void launched(NcclRequest& request);
  void capture(NcclRequest& request, const cuda::CaptureState& capture);
  Outcome poll_aborted(NcclRequest& request) noexcept;
  void keep_for_ever(NcclRequest& request) noexcept;
  void fail(ncclResult_t result);
  void fail(std::string cause, std::string native);
  template <class Work>
  bool guarded(const char* what, Work&& work) noexcept;

  const NcclLibrary& library_;
  const std::string group_;
  const cuda::ContextPtr context_;
  cuda::Stream stream_;
  cuda::DeviceMemory scratch_;
  cuda::EventPool events_;
  std::shared_ptr<Communicator> communicator_;  ///< memory that it knows keeps it, too
  const Registration registration_;
  const std::chrono::milliseconds patience_;  ///< with calls of NCCL and the driver
  std::shared_ptr<CallSlot> calls_;
  std::vector<ncclUniqueId> ids_;
  int rank_ = 0;
  int size_ = 1;

  bool connected_ = false;  ///< all ranks have met
  std::deque<NcclRequest*> waiting_;
  NcclRequest* launching_ = nullptr;
  std::uint64_t last_ticket_ = 0;
  std::uint64_t begun_ticket_ = 0;  ///< the highest that was seen to have begun
  std::uint64_t done_ticket_ = 0;   ///< all up to it are over; the highest that was seen to be
  bool failed_ = false;
  Failure failure_;
  std::atomic<bool> aborted_{false};
  std::atomic<std::int64_t> aborted_at_{0};  ///< ticks of the steady clock
  bool told_ = false;                        ///< that what was aborted does not end
  std::deque<NcclRequest> requests_;
  std::vector<NcclRequest*> unused_;
};

}  // namespace ddp::collectives::nccl
