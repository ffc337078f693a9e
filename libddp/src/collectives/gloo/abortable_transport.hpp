// A Gloo transport whose waits can be ended from another thread.
//
// Gloo ends waits when a connection fails, with one exception that happens when a peer dies at the wrong moment: a send
// whose write fails is never reported to the buffer that waits for it (Pair::sendAsyncMode in
// gloo/transport/tcp/pair.cc), and the wait lasts until its time-out. Every buffer offers to abort its waits, but
// Gloo's algorithms keep theirs to themselves. So this transport makes the buffers and keeps track of them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

namespace ddp::collectives::gloo_backend {

/// The buffers in use, and whether they have been aborted. Thread-safe.
class LiveBuffers {
 public:
  void add(::gloo::transport::UnboundBuffer* buffer);
  void remove(::gloo::transport::UnboundBuffer* buffer);
  /// Ends all waits, now and in the future.
  void abort();
  /// Throws gloo::IoException once aborted.
  void check() const;

 private:
  std::mutex mutex_;
  std::set<::gloo::transport::UnboundBuffer*> buffers_;
  std::atomic<bool> aborted_ = false;
};

/// Hands everything on to another transport context, and makes buffers whose waits abort() ends with an exception.
class AbortableTransport final : public ::gloo::transport::Context {
 public:
  explicit AbortableTransport(std::shared_ptr<::gloo::transport::Context> inner);

  std::unique_ptr<::gloo::transport::Pair>& getPair(int peer) override { return inner_->getPair(peer); }
  std::unique_ptr<::gloo::transport::Pair>& createPair(int peer) override { return inner_->createPair(peer); }
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, std::size_t size_bytes) override;

  /// Makes current and later operations fail. Thread-safe.
  void abort() noexcept;

 private:
  std::shared_ptr<::gloo::transport::Context> inner_;
  std::shared_ptr<LiveBuffers> live_ = std::make_shared<LiveBuffers>();
};

}  // namespace ddp::collectives::gloo_backend
