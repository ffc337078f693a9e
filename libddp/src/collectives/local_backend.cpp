// A group of one rank needs no communication library: every collective is a copy from input to output.
#include <cstring>

#include "collectives/backend.hpp"

namespace ddp::collectives {
namespace {

class LocalBackend final : public Backend {
 public:
  bool serves(DeviceType device) const noexcept override { return device == DeviceType::cpu; }
  Bytes address() const override { return {}; }
  void connect(const std::vector<Bytes>& /*only this rank*/, Deadline /*immediate*/) override {}
  void run(const Operation& operation, Deadline /*immediate*/) override {
    const std::size_t bytes = operation.output.size_bytes();
    if (bytes == 0 || operation.input.data() == operation.output.data()) return;
    std::memmove(operation.output.data(), operation.input.data(), bytes);
  }
  std::unique_ptr<Transfer> start(const Operation& operation) override {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = operation.description(),
                 .cause = "a rank cannot exchange messages with itself",
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  void abort() noexcept override {}
};

}  // namespace

std::unique_ptr<Backend> make_local_backend() { return std::make_unique<LocalBackend>(); }

}  // namespace ddp::collectives
