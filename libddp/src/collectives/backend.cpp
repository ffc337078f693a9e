// What backends share: names and defaults of <ddp/backend.hpp>.
#include "collectives/backend.hpp"

#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "collectives/backend.hpp"
#include "collectives/reduce_kernels.hpp"

namespace ddp {

std::string_view to_string(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::running: return "running";
    case Outcome::ok: return "ok";
    case Outcome::timeout: return "timeout";
    case Outcome::peers_failed: return "peers_failed";
    case Outcome::mismatch: return "mismatch";
    case Outcome::aborted: return "aborted";
  }
  return "unknown";
}

bool Request::order(const Stream& /*stream*/) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "ordering a stream after an operation",
               .cause = "the operation's backend does not run on streams",
               .hint = "wait for the operation instead"}};
}

void Backend::order_captured(const Stream& /*captured*/, const Stream& /*stream*/) {}
void Backend::pause_briefly() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

std::shared_ptr<void> Backend::allocate(std::size_t bytes, Deadline /*deadline*/, const Pause& /*pause*/) {
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = fmt::format("allocating {} bytes of a device", bytes),
               .cause = "the group's backend has no memory of its own",
               .hint = "use the program's allocator"}};
}

std::shared_ptr<TensorExecutor> Backend::make_executor(bool /*converts*/, Deadline /*deadline*/,
                                                       const Pause& /*pause*/) {
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "preparing to move gradients on a device",
               .cause = "the group's backend moves no tensors",
               .hint = "take the backend nccl for gradients on CUDA devices"}};
}

void Backend::split(Backend* /*child*/, int /*rank*/, Deadline /*deadline*/, const Pause& /*pause*/) {}
void Backend::rest(std::chrono::microseconds limit) noexcept { std::this_thread::sleep_for(limit); }

}  // namespace ddp

namespace ddp::collectives {

// A group of one rank needs no communication library: every collective is a copy from input to output, made at once.

namespace {

class LocalRequest final : public Request {
 public:
  explicit LocalRequest(std::vector<LocalRequest*>& unused) : unused_(unused) {}
  LocalRequest& init(std::span<const Operation> operations) {
    operations_ = operations;
    return *this;
  }

  void post() noexcept override {
    outcome_ = Outcome::ok;
    for (const Operation& operation : operations_) {
      if (operation.is_transfer()) outcome_ = Outcome::mismatch;
      const std::size_t bytes = operation.output.size_bytes();
      if (operation.is_transfer() || bytes == 0) continue;
      void* const out = operation.output.data();
      if (operation.input.data() != out) std::memmove(out, operation.input.data(), bytes);
      if (operation.prescale != 1) divide(out, operation.dtype, operation.output.numel(), divisor_of(operation, 1));
    }
  }
  Outcome poll() noexcept override { return outcome_; }
  Failure failure() const override { return {.cause = "a rank cannot exchange messages with itself"}; }
  void release() noexcept override { unused_.push_back(this); }  // there was room for all when it was made

 private:
  std::vector<LocalRequest*>& unused_;
  std::span<const Operation> operations_;
  Outcome outcome_ = Outcome::running;
};

class LocalBackend final : public Backend {
 public:
  const BackendTraits& traits() const noexcept override { return kCpuTraits; }
  Bytes address() const override { return {}; }
  void connect(const std::vector<Bytes>& /*only this rank*/, Deadline /*immediate*/) override {}
  Request& init(std::span<const Operation> operations, Deadline /*immediate*/) override {
    if (unused_.empty()) {
      unused_.reserve(requests_.size() + 1);
      unused_.push_back(&requests_.emplace_back(unused_));
    }
    LocalRequest& request = *unused_.back();
    unused_.pop_back();
    return request.init(operations);
  }
  void abort() noexcept override {}
  void close(Deadline /*immediate*/) noexcept override {}

 private:
  std::vector<LocalRequest*> unused_;
  std::deque<LocalRequest> requests_;
};

}  // namespace

const BackendPlugin kLocalBackend{.version = kBackendVersion,
                                  .name = "local",
                                  .create = [](const BackendConfig& /*one rank*/) -> std::unique_ptr<Backend> {
                                    return std::make_unique<LocalBackend>();
                                  }};

kernels::Executor& KernelLauncher::of(TensorExecutor& executor) {
  if (auto* const known = dynamic_cast<KernelLauncher*>(&executor)) return known->launcher();
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "computing with gradients on a device",
               .cause = "the backend that moves them does not run libddp's kernels",
               .hint = "take the backend nccl, or a hook that only averages or casts"}};
}

}  // namespace ddp::collectives
