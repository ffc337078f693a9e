// What backends share: names and defaults of <ddp/backend.hpp>.
#include <ddp/backend.hpp>

#include <thread>

#include <fmt/format.h>

#include <ddp/error.hpp>

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
