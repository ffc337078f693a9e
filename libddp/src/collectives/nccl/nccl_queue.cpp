#include "collectives/nccl/nccl_queue.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/env_table.hpp"
#include "base/log.hpp"
#include "collectives/wait_ladder.hpp"
#include "cuda/driver.hpp"

namespace ddp::collectives::nccl {
namespace {

// Aborted operations end within milliseconds unless NCCL or the driver hangs. Shorter than the wait of a closing group.
constexpr std::chrono::seconds kLongestAbort{4};

Registration chosen_registration() {
  const std::string word = base::Environment::process().text("DDP_NCCL_REGISTER");
  if (word == "off") return Registration::off;
  return word == "window" ? Registration::window : Registration::local;
}

}  // namespace

void NcclRequest::post() noexcept { queue_.post(*this); }
Outcome NcclRequest::poll() noexcept { return queue_.poll(*this); }
Failure NcclRequest::failure() const { return queue_.failure(); }
bool NcclRequest::started() const noexcept { return queue_.started(*this); }
std::optional<Stream> NcclRequest::captured_in() const noexcept {
  if (state_ != State::captured) return std::nullopt;
  return Stream{.device = operations_.front().stream.device, .handle = stream_};
}
bool NcclRequest::order(const Stream& stream) { return queue_.order(*this, static_cast<CUstream>(stream.handle)); }
void NcclRequest::release() noexcept { queue_.release(*this); }

NcclQueue::NcclQueue(const NcclLibrary& library, int device, const std::string& group)
    : library_(library),
      group_(group),
      context_(cuda::PrimaryContext::retain(device)),
      stream_(context_, cuda::StreamPriority::highest),
      scratch_(context_, 1),
      events_(context_),
      registration_(chosen_registration()),
      patience_(base::Environment::process().seconds("DDP_NCCL_STUCK_AFTER")) {
  calls_ = CallMonitor::watch(
      group, "; NCCL is aborted once the group has failed, at an operation's deadline at the latest", patience_);
  communicator_ = std::make_shared<Communicator>(library, context_, group, patience_);
}

NcclQueue::~NcclQueue() {
  communicator_->abort();
  if (communicator_->over()) return;
  // freeing device memory waits for the device, which may never finish
  static_cast<void>(new cuda::DeviceMemory(std::move(scratch_)));
}

void NcclQueue::connect(std::vector<ncclUniqueId> ids, int size, int rank) {
  ids_ = std::move(ids);
  size_ = size;
  rank_ = rank;
}

NcclRequest& NcclQueue::init(std::span<const Operation> operations, Deadline deadline) {
  if (unused_.empty()) {
    unused_.reserve(requests_.size() + 1);
    unused_.push_back(&requests_.emplace_back(*this));
  }
  NcclRequest& request = *unused_.back();
  unused_.pop_back();
  request.operations_ = operations;
  request.deadline_ = deadline;
  request.state_ = State::idle;
  request.started_ = false;
  return request;
}

/// Runs @p work, which calls the driver and NCCL; its exception becomes the group's failure. @return false then
template <class Work>
bool NcclQueue::guarded(const char* what, Work&& work) noexcept {
  try {
    const CallScope call(*calls_, what);
    const cuda::ContextScope context(*context_);
    const cuda::RelaxedCaptureScope relaxed;
    work();
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", error.attempted(), error.cause()), error.native());
  } catch (const std::exception& error) {
    fail(error.what(), {});
  }
  return !failed_;
}

void NcclQueue::fail(ncclResult_t result) {
  const std::string last = library_.last_error(nullptr);
  fail(last.empty() ? "NCCL failed" : last, to_string(result));
}

void NcclQueue::fail(std::string cause, std::string native) {
  if (std::exchange(failed_, true)) return;
  failure_ = {.cause = std::move(cause), .native = std::move(native)};
}

void NcclQueue::post(NcclRequest& request) noexcept {
  request.state_ = State::waiting;
  if (!aborted_ && !failed_) guarded("starting an operation", [&] { accept(request); });
}

void NcclQueue::accept(NcclRequest& request) {
  const Operation& first = request.operations_.front();
  const auto callers = static_cast<CUstream>(first.stream.handle);
  cuda::CaptureState captured;
  if (callers != nullptr) captured = cuda::Stream::capture_state_of(callers);
  request.queued_ = request.own_stream() && !captured.capturing();
  request.stream_ = request.queued_ ? stream_.get() : callers;
  if (request.queued_) {
    request.ready_ = events_.take();
    request.ready_.record(callers);
  }
  if (captured.capturing()) return capture(request, captured);
  if (!begin()) return;
  waiting_.push_back(&request);
  advance();
}

/// The first operation connects the communicator.
bool NcclQueue::begin() {
  if (communicator_->begun()) return true;
  const ncclResult_t result = communicator_->begin(std::move(ids_), size_, rank_);
  if (result != ncclSuccess && result != ncclInProgress) fail(result);
  return !failed_;
}

/// Advances the communicator and the waiting operations as far as possible without blocking.
void NcclQueue::advance() {
  GraphKeeper::free_unused();
  const ncclResult_t state = communicator_->state();
  if (state == ncclInProgress || aborted_) return;
  if (state != ncclSuccess) return fail(state);
  if (!std::exchange(connected_, true)) {
    base::log(base::LogLevel::info, "group '{}': NCCL {} connects {} ranks", group_, version_text(library_.version()),
              size_);
  }
  if (launching_ != nullptr) launched(*launching_);
  while (!waiting_.empty() && !failed_ && !aborted_) {
    NcclRequest& request = *waiting_.front();
    const std::optional<ncclResult_t> result = launch(request);
    if (!result) return;  // memory is being deregistered
    waiting_.pop_front();
    launching_ = &request;
    request.state_ = State::launching;
    if (result != ncclSuccess && result != ncclInProgress) return fail(*result);
    if (result == ncclInProgress) return;  // a later poll sees it launched: the caller does not wait for that
    launched(request);
  }
}

/// Whether all ranks are connected and NCCL has processed everything that it was given.
bool NcclQueue::idle() {
  const auto ready = [&] { return connected_ && launching_ == nullptr && waiting_.empty(); };
  if (communicator_->begun() && !ready() && !failed_ && !aborted_) advance();
  return ready() && !failed_ && !aborted_;
}

/// Makes a call of NCCL, outside operations, that all ranks make. Throws Error if it has not succeeded by @p deadline.
/// Between checks, the group may use this queue.
template <class Call>
void NcclQueue::call_with_all(const char* what, const std::string& attempted, Deadline deadline,
                              const Backend::Pause& pause, Call&& call) {
  std::optional<ncclResult_t> result;  // set once called
  const auto look = [&] {
    if (result) {
      result = communicator_->state();
    } else if (begin() && idle()) {
      result = call();
      // ncclCommSplit and ncclCommWindowRegister return ncclSuccess for work that has only begun
      if (result == ncclSuccess) result = communicator_->state();
    }
  };
  const auto over = [&] { return failed_ || aborted_ || (result && result != ncclInProgress); };
  for (;;) {
    if (!over()) guarded(what, look);
    if (over() || deadline.expired()) break;
    pause();
  }
  if (result == ncclSuccess) return;
  if (result && result != ncclInProgress) fail(*result);
  const bool late = !failed_ && !aborted_;
  if (late) fail("not all ranks have taken part in time", {});  // NCCL cannot be called back
  throw Error{{.code = late ? ErrorCode::timeout : ErrorCode::unavailable,
               .attempted = attempted,
               .cause = failed_ ? failure_.cause : "the group was aborted",
               .native = failure_.native,
               .hint = late ? "all ranks of a group must do the same, in the same order" : ""}};
}

std::shared_ptr<void> NcclQueue::allocate(std::size_t bytes, Deadline deadline, const Backend::Pause& pause) {
  auto memory =
      RegisteredMemory::allocate(library_, context_, communicator_, bytes, group_, patience_, deadline, pause);
  try {
    call_with_all("registering memory", fmt::format("allocating {} bytes for group '{}'", bytes, group_), deadline,
                  pause, [&] { return memory->register_as(registration_); });
  } catch (const Error&) {
    memory->keep_if_pending();
    throw;
  }
  return {memory, memory->pointer()};
}

void NcclQueue::split(NcclQueue* child, int rank, Deadline deadline, const Backend::Pause& pause) {
  call_with_all("splitting NCCL's communicator", fmt::format("splitting a group off group '{}'", group_), deadline,
                pause,
                [&] { return communicator_->split(child == nullptr ? nullptr : child->communicator_.get(), rank); });
}

/// As Communicator::try_with.
std::optional<ncclResult_t> NcclQueue::launch(NcclRequest& request) {
  return communicator_->try_with([&](ncclComm_t comm) {
    if (request.queued_) stream_.wait(request.ready_.get());
    if (request.state_ != State::captured) {
      request.begun_ = events_.take();
      request.begun_.record(request.stream_);
    }
    const CallPlace place{
        .comm = comm, .rank = rank_, .size = size_, .scratch = scratch_.pointer(), .stream = request.stream_};
    NcclGroup group(library_);
    for (const Operation& operation : request.operations_) call(library_, group, place, operation);
    return group.end();
  });
}

/// Assigns the event only once it is recorded: reused ones still show an earlier end.
void NcclQueue::record_end(NcclRequest& request) {
  cuda::Event ended = events_.take();
  ended.record(request.stream_);
  request.ended_ = std::move(ended);
}

void NcclQueue::launched(NcclRequest& request) {
  launching_ = nullptr;
  record_end(request);
  request.state_ = State::in_stream;
  if (request.queued_) request.ticket_ = ++last_ticket_;
}

/// Captures into the graph of the caller's stream. Its events belong to the graph and report nothing here, so for the
/// group the operation is over, while the graph keeps its memory.
void NcclQueue::capture(NcclRequest& request, const cuda::CaptureState& capture) {
  // Other operations of the group cannot run here: the caller continues capturing when this returns. The ranks have
  // already connected, unless DDP_NCCL_CONNECT=lazy leaves that to this operation.
  while (!idle() && !failed_ && !aborted_ && !request.deadline_.expired()) WaitLadder::relax();
  if (!idle()) {
    if (failed_ || aborted_) return;
    return fail("an operation is captured into a graph before the group's communicator is ready; run one first", {});
  }
  GraphKeeper::keep(capture.graph, request.operations_);
  request.state_ = State::captured;
  std::optional<ncclResult_t> result = launch(request);
  while (!result && !aborted_ && !request.deadline_.expired()) result = launch(request);
  while (result == ncclInProgress && !aborted_ && !request.deadline_.expired()) result = communicator_->state();
  if (result != ncclSuccess) fail(result.value_or(ncclInProgress));
}

Outcome NcclQueue::poll(NcclRequest& request) noexcept {
  if (aborted_) return poll_aborted(request);
  if (failed_) return Outcome::peers_failed;
  if (request.state_ == State::captured) return Outcome::ok;
  // the previous operation is still running
  if (request.state_ == State::in_stream && request.queued_ && request.ticket_ > done_ticket_ + 1) {
    return Outcome::running;
  }
  auto outcome = Outcome::running;
  guarded("looking after an operation", [&] {
    advance();
    if (request.state_ != State::in_stream || failed_) return;
    const CUresult code = request.ended_.query();
    if (code == CUDA_ERROR_NOT_READY) return;
    cuda::check(code, "looking after an operation on the device");
    // a later one may have been seen to end first, in the poll that saw this one launched
    if (request.queued_) done_ticket_ = std::max(done_ticket_, request.ticket_);
    outcome = Outcome::ok;
  });
  return failed_ ? Outcome::peers_failed : outcome;
}

/// Running until neither NCCL nor the device uses its memory any more.
Outcome NcclQueue::poll_aborted(NcclRequest& request) noexcept {
  if (request.state_ == State::captured) return Outcome::aborted;
  const auto since = Deadline::Clock::time_point{Deadline::Clock::duration{aborted_at_.load()}};
  const bool patient = Deadline::Clock::now() - since < kLongestAbort;
  bool quiet = communicator_->over();
  if (quiet && request.state_ == State::launching && !request.ended_) {  // NCCL may have queued it
    guarded("looking after an aborted operation", [&] { record_end(request); });
  }
  if (quiet && request.ended_) {
    const CallScope call(*calls_, "looking after an aborted operation");
    CUresult code = CUDA_SUCCESS;
    const cuda::ContextScope context(*context_, code);
    try {
      const cuda::RelaxedCaptureScope relaxed;
      quiet = code != CUDA_SUCCESS || request.ended_.query() != CUDA_ERROR_NOT_READY;
    } catch (const Error&) {  // the device no longer answers
    }
  }
  if (quiet) return Outcome::aborted;
  if (patient) return Outcome::running;
  keep_for_ever(request);
  return Outcome::aborted;
}

void NcclQueue::keep_for_ever(NcclRequest& request) noexcept {
  if (!std::exchange(told_, true)) {
    base::log(
        base::LogLevel::error,
        "group '{}': operations have not ended {} s after NCCL was told to abort; memory that the group was given "
        "to keep is never freed",
        group_, kLongestAbort.count());
  }
  static_cast<void>(GraphKeeper::owners_of(request.operations_).release());
  static_cast<void>(new cuda::Event(std::move(request.ended_)));
}

bool NcclQueue::started(const NcclRequest& request) noexcept {
  if (request.started_ || request.state_ == State::captured) return true;
  if (request.state_ != State::in_stream) return false;
  // the previous operation has not started
  if (request.queued_ && request.ticket_ > std::max(begun_ticket_, done_ticket_) + 1) return false;
  const CallScope call(*calls_, "asking whether an operation has begun");
  CUresult code = CUDA_SUCCESS;
  const cuda::ContextScope context(*context_, code);
  try {
    const cuda::RelaxedCaptureScope relaxed;
    request.started_ = code == CUDA_SUCCESS && request.begun_.query() == CUDA_SUCCESS;
  } catch (const Error&) {  // the next poll reports it
  }
  if (request.started_ && request.queued_) begun_ticket_ = std::max(begun_ticket_, request.ticket_);
  return request.started_;
}

bool NcclQueue::order(NcclRequest& request, CUstream stream) {
  if (request.state_ == State::captured) {
    order_captured(request.stream_, stream);
    return true;
  }
  if (aborted_ || !guarded("ordering a stream", [&] { advance(); })) return false;
  if (request.state_ != State::in_stream) return false;
  if (stream == request.stream_) return true;
  const CallScope call(*calls_, "ordering a stream");
  const cuda::ContextScope context(*context_);
  cuda::check(cuda::driver().stream_wait_event(stream, request.ended_.get(), CU_EVENT_WAIT_DEFAULT),
              "making a stream wait for " + request.operations_.front().description());
  return true;
}

/// Orders within a graph are made while it is captured; that draws an outside stream into the capture.
void NcclQueue::order_captured(CUstream captured, CUstream stream) {
  if (stream == captured) return;
  const CallScope call(*calls_, "ordering a stream");
  const cuda::ContextScope context(*context_);
  const cuda::RelaxedCaptureScope relaxed;
  if (!cuda::Stream::capture_state_of(captured).capturing()) return;
  cuda::Event behind = events_.take();
  behind.record(captured);
  cuda::Stream::borrow(stream).wait(behind.get());
  events_.give_back(std::move(behind));
}

void NcclQueue::release(NcclRequest& request) noexcept {
  for (cuda::Event* event : {&request.ready_, &request.begun_, &request.ended_}) {
    if (*event) events_.give_back(std::move(*event));
    *event = {};
  }
  request.state_ = State::idle;
  unused_.push_back(&request);  // it has room for all requests
}

void NcclQueue::abort() noexcept {
  if (aborted_.load()) return;
  aborted_at_ = Deadline::Clock::now().time_since_epoch().count();
  aborted_ = true;
  communicator_->abort();
}

void NcclQueue::close(Deadline deadline) noexcept {
  const CallScope call(*calls_, "ending NCCL");
  CUresult code = CUDA_SUCCESS;
  const cuda::ContextScope context(*context_, code);
  communicator_->finish(deadline);
  GraphKeeper::free_unused();
}

}  // namespace ddp::collectives::nccl
