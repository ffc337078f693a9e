// A dump of PyTorch's flight recorder, as what is known of a rank's process groups.
// Its format: torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x.
#pragma once

#include <cstdint>
#include <string_view>

#include "flight/flight_view.hpp"

namespace ddp::diagnostics {

/// Adds the groups and operations of @p dump (JSON, or a pickle of plain data) to @p view, which says rank and size of
/// the world. Groups are named "gloo:0 default_pg". Of groups but the first, Gloo does not say who is in them: then
/// members is empty. @param now_ns since 1970, on the clock of the rank's host. Throws Error(protocol).
void add_torch_trace(std::string_view dump, std::int64_t now_ns, flight::FlightView& view);

}  // namespace ddp::diagnostics
