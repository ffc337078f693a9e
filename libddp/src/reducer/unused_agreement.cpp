#include "reducer/unused_agreement.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "collectives/all_gather_bytes.hpp"
#include "reducer/answers.hpp"

namespace ddp::reducer {

void agree_on_unused(ProcessGroup& group, const std::vector<Parameter>& parameters,
                     std::span<const std::size_t> unused) {
  std::vector<std::uint8_t> flags(parameters.size());
  for (const std::size_t index : unused) flags[index] = 1;
  const auto own = std::as_bytes(std::span{flags});
  std::vector<std::int64_t> hash{static_cast<std::int64_t>(base::Fnv1a().add(own).value())};
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(group.size()));
  group.all_gather(hash, hashes).wait();
  if (std::ranges::all_of(hashes, [&](std::int64_t other) { return other == hashes[0]; })) return;

  const std::vector<Bytes> by_rank = collectives::all_gather_bytes(group, own);
  std::string cause = "the ranks give different parameters as unused";
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::vector<std::string> answers;
    for (const Bytes& bytes : by_rank) answers.emplace_back(bytes[i] == std::byte{0} ? "used" : "unused");
    const auto groups = group_answers(group, answers);
    if (groups.size() == 1) continue;
    cause = fmt::format("parameter {} '{}' is {} on {}, {} on {}", i, parameters[i].name, groups[0].first,
                        format_ranks(groups[0].second), groups[1].first, format_ranks(groups[1].second));
    break;
  }
  throw Error{{.code = ErrorCode::mismatch,
               .attempted = "starting a backward pass",
               .cause = std::move(cause),
               .hint = "with skip_all_reduce_unused all ranks must give the same; leave it off if they differ"}};
}

}  // namespace ddp::reducer
