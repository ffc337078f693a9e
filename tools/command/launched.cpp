#include "command/launched.hpp"

#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "world/launch_environment.hpp"

namespace ddp::tools {

bool is_launched(const base::Environment& environment) {
  const std::string forced = environment.text("DDP_LAUNCH");
  if (!forced.empty()) return forced != to_string(LaunchSource::single);
  try {
    return world::detect_launch(environment, {}).source != LaunchSource::single;
  } catch (const Error& error) {
    ErrorDetail detail = error.detail();
    detail.hint += fmt::format("{}to look at this machine alone, use --no-job", detail.hint.empty() ? "" : "; ");
    throw Error{std::move(detail)};
  }
}

}  // namespace ddp::tools
