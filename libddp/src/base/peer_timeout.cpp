#include "base/peer_timeout.hpp"

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::base {
namespace {

constexpr auto kName = "DDP_PEER_TIMEOUT";
constexpr std::chrono::seconds kLeast{5};

}  // namespace

std::chrono::milliseconds peer_timeout(const Environment& environment) {
  const std::chrono::milliseconds timeout = environment.seconds(kName);
  if (timeout >= kLeast) return timeout;
  throw Error{
      {.code = ErrorCode::invalid_argument,
       .attempted = fmt::format("reading the environment variable {}", kName),
       .cause = fmt::format("'{}' s is too short: a healthy process may be stopped for 2 s", environment.text(kName)),
       .hint = fmt::format("give at least {} s, or unset it", kLeast.count())}};
}

}  // namespace ddp::base
