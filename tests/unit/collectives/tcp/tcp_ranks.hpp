// What tests of groups over TCP call.
#pragma once

#include "collectives/tcp/tcp_backend.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/checked_call.hpp"

namespace ddp::collectives::tcp {

inline testing::Subject subject(int size) {
  return {.name = "Tcp", .create = [](const BackendConfig& config) { return make_backend(config); }, .size = size};
}

inline void all_reduce(Backend& backend, int size, int rank, std::uint64_t sequence, std::size_t count) {
  const testing::CheckedCall call({.kind = OperationKind::all_reduce, .count = count}, size, rank, sequence);
  const testing::Ended ended = testing::run(backend, call.operation());
  ASSERT_EQ(ended.outcome, Outcome::ok) << ended.failure.cause;
  call.check();
}

inline Operation message(OperationKind kind, int peer, std::uint32_t tag, std::vector<float>& values) {
  Operation operation;
  operation.kind = kind;
  operation.root = peer;
  operation.tag = tag;
  operation.count = values.size();
  (kind == OperationKind::send ? operation.input : operation.output) = values;
  return operation;
}

}  // namespace ddp::collectives::tcp
