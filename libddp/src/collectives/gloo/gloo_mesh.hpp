// The connections of one rank's end of a Gloo group: a full mesh of TCP pairs, from addresses that the ranks exchanged
// by other means.
#pragma once

#include <memory>
#include <vector>

#include <gloo/context.h>

#include <ddp/backend.hpp>

#include "collectives/gloo/abortable_transport.hpp"

namespace ddp::collectives::gloo_backend {

/// A gloo::Context whose pairs are created at once and connected later.
class GlooMesh final : public ::gloo::Context {
 public:
  explicit GlooMesh(const BackendConfig& config);

  /// This rank's listening ports, one per peer, behind one IP address: a few bytes each, where Gloo's own form takes
  /// 136.
  Bytes address() const;
  void connect(const std::vector<Bytes>& addresses, Deadline deadline);

  /// Makes current and later operations fail. Thread-safe.
  void abort() noexcept { transport_->abort(); }

 private:
  std::shared_ptr<AbortableTransport> transport_;
};

}  // namespace ddp::collectives::gloo_backend
