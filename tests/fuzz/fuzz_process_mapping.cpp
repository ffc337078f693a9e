// What a launcher says about the placement of ranks: process mappings and compressed node lists. Whatever the text, the
// parsers throw ddp::Error or give a placement that the node map accepts and names that are not empty.
#include "fuzz/fuzz.hpp"
#include "topology/network/hostlist.hpp"
#include "world/job_connection.hpp"

namespace {

void read_mapping(std::string_view text, int world_size) {
  std::vector<int> node_of;
  try {
    node_of = ddp::world::parse_process_mapping(text, world_size);
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
    return;
  }
  require(node_of.size() == static_cast<std::size_t>(world_size));
  const ddp::world::NodeMap map{node_of};  // throws unless the numbers are dense
  for (int rank = 0; rank < world_size; ++rank) {
    const auto& ranks = map.ranks_on(map.node_of(rank));
    require(ranks.at(static_cast<std::size_t>(map.local_rank_of(rank))) == rank);
  }
}

void read_names(std::string_view text) {
  constexpr std::size_t kLimit = 1000;
  try {
    const auto names = ddp::topology::expand_hostlist(text, kLimit);
    require(!names.empty() && names.size() <= kLimit);
    for (const auto& name : names) {
      require(!name.empty() && name.find_first_of("[],") == std::string_view::npos);
    }
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::protocol);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // the first byte is the number of ranks, so that mappings end in every place
  const int world_size = data[0] % 100 + 1;
  const std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
  read_mapping(text, world_size);
  read_names(text);
  return 0;
}
