#include "collectives/gloo/abortable_transport.hpp"

#include <chrono>
#include <utility>
#include <vector>

#include <gloo/common/error.h>

namespace ddp::collectives::gloo_backend {
namespace {

using ::gloo::transport::UnboundBuffer;

class AbortableBuffer final : public UnboundBuffer {
 public:
  AbortableBuffer(std::unique_ptr<UnboundBuffer> inner, std::shared_ptr<LiveBuffers> live)
      : UnboundBuffer(inner->ptr, inner->size), inner_(std::move(inner)), live_(std::move(live)) {
    live_->add(inner_.get());
  }
  ~AbortableBuffer() override { live_->remove(inner_.get()); }

  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    live_->check();
    return complete(inner_->waitRecv(rank, timeout));
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    live_->check();
    return complete(inner_->waitSend(rank, timeout));
  }
  void abortWaitRecv() override { inner_->abortWaitRecv(); }
  void abortWaitSend() override { inner_->abortWaitSend(); }
  void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override {
    inner_->send(peer, slot, offset, size_bytes);
  }
  void recv(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override {
    inner_->recv(peer, slot, offset, size_bytes);
  }
  void recv(std::vector<int> peers, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override {
    inner_->recv(std::move(peers), slot, offset, size_bytes);
  }

 private:
  // Gloo's algorithms do not look at the result of a wait: an aborted wait would pass for a finished one.
  static bool complete(bool finished) {
    if (!finished) throw ::gloo::IoException("the operation was aborted");
    return true;
  }

  std::unique_ptr<UnboundBuffer> inner_;
  std::shared_ptr<LiveBuffers> live_;
};

}  // namespace

void LiveBuffers::add(UnboundBuffer* buffer) {
  const std::lock_guard lock(mutex_);
  buffers_.insert(buffer);
}

void LiveBuffers::remove(UnboundBuffer* buffer) {
  const std::lock_guard lock(mutex_);
  buffers_.erase(buffer);
}

void LiveBuffers::abort() {
  aborted_ = true;  // first: buffers that passed check() are in the list below, and their next wait returns at once
  const std::lock_guard lock(mutex_);
  for (UnboundBuffer* buffer : buffers_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

void LiveBuffers::check() const {
  if (aborted_) throw ::gloo::IoException("the operation was aborted");
}

AbortableTransport::AbortableTransport(std::shared_ptr<::gloo::transport::Context> inner)
    : ::gloo::transport::Context(inner->rank, inner->size), inner_(std::move(inner)) {}

std::unique_ptr<UnboundBuffer> AbortableTransport::createUnboundBuffer(void* data, std::size_t size_bytes) {
  live_->check();
  return std::make_unique<AbortableBuffer>(inner_->createUnboundBuffer(data, size_bytes), live_);
}

void AbortableTransport::abort() noexcept {
  try {
    live_->abort();
    // Gloo closes all connections of a context when a wait times out, and has no other call for it: without that, peers
    // would not notice. So wait a millisecond for a buffer without a sender.
    char nothing = 0;
    const auto buffer = inner_->createUnboundBuffer(&nothing, sizeof nothing);
    buffer->waitRecv(nullptr, std::chrono::milliseconds(1));
  } catch (const std::exception&) {
    // the time-out that was wanted
  }
}

}  // namespace ddp::collectives::gloo_backend
