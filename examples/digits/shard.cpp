#include "digits/shard.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <ddp/error.hpp>

namespace digits {

std::span<const std::size_t> shard_of(std::span<const std::size_t> batch, int rank, int world_size) {
  if (rank < 0 || rank >= world_size) {
    throw ddp::Error{{.code = ddp::ErrorCode::invalid_argument,
                      .attempted = "choosing a rank's part of a batch",
                      .cause = fmt::format("rank {} is not one of {} ranks", rank, world_size),
                      .hint = "use World::rank() and World::world_size()"}};
  }
  const auto ranks = static_cast<std::size_t>(world_size);
  const auto position = static_cast<std::size_t>(rank);
  const std::size_t even = batch.size() / ranks;
  const std::size_t larger_parts = batch.size() % ranks;
  const std::size_t first = position * even + std::min(position, larger_parts);
  return batch.subspan(first, even + (position < larger_parts ? 1 : 0));
}

}  // namespace digits
