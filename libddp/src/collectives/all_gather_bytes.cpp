#include "collectives/all_gather_bytes.hpp"

#include <numeric>

namespace ddp::collectives {

std::vector<Bytes> all_gather_bytes(ProcessGroup& group, std::span<const std::byte> own,
                                    std::optional<Deadline> deadline) {
  const auto view = [](std::span<const std::byte> bytes) {
    return std::span{reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  };
  std::vector<std::int64_t> own_size{static_cast<std::int64_t>(own.size())};
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()));
  group.all_gather(own_size, sizes, deadline).wait();
  const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
  Bytes received(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  group.all_gather_v(view(own), view(received), counts, deadline).wait();
  std::vector<Bytes> all;
  auto next = received.begin();
  for (const std::size_t count : counts) {
    const auto end = next + static_cast<std::ptrdiff_t>(count);
    all.emplace_back(next, end);
    next = end;
  }
  return all;
}

}  // namespace ddp::collectives
