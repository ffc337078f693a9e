// A rank's environment as the bytes that it sends to rank 0.
#pragma once

#include <cstddef>

#include <ddp/bytes.hpp>

#include "base/message_fields.hpp"
#include "diagnostics/environment/rank_environment.hpp"

namespace ddp {

constexpr auto description(const EnvironmentReport::Library*) {
  using T = EnvironmentReport::Library;
  return base::describe({.name = "NCCL of a rank", .unsent = 1},
                        base::fields<&T::path, &T::found, &T::version, &T::names, &T::problem>());
}
constexpr auto description(const EnvironmentFinding*) {
  using T = EnvironmentFinding;
  return base::describe({.name = "finding", .unsent = 1},
                        base::fields<&T::rule, &T::error, &T::variable, &T::text, &T::remedy>());
}

}  // namespace ddp

namespace ddp::diagnostics {

constexpr auto description(const RankFile*) {
  return base::describe({"file"}, base::fields<&RankFile::path, &RankFile::digest>());
}
constexpr auto description(const RankVariable*) {
  using T = RankVariable;
  return base::describe({"variable"}, base::fields<&T::name, &T::value, &T::origin, &T::read>());
}

/// A fence carries every message to every node, so they have a limit. Typical ones have 3 to 6 KiB.
constexpr auto description(const RankEnvironment*) {
  using T = RankEnvironment;
  return base::describe({.name = "rank's environment", .version = 2, .most_bytes = std::size_t{128} * 1024},
                        base::fields<&T::rank, &T::host, &T::nccl, &T::files, &T::variables, &T::findings>());
}

/// One that would be too large goes without the variables that have nothing to do with training, then without any.
Bytes encode(const RankEnvironment& environment);

}  // namespace ddp::diagnostics
