// A group of one rank needs no communication library: every collective is a copy from input to output, made at once.
#include "collectives/local_backend.hpp"

#include <cstring>
#include <deque>
#include <vector>

#include "collectives/cpu_traits.hpp"
#include "collectives/reduce_kernels.hpp"

namespace ddp::collectives {
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

}  // namespace ddp::collectives
