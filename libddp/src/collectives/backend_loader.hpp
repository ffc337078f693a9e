// Finds backends by name: those built in, then plugins.
#pragma once

#include <string_view>

#include <ddp/backend.hpp>

namespace ddp::collectives {

/// Whether it is a part of this library. Else it is a plugin, whose calls may do what they should not.
bool is_built_in(std::string_view name) noexcept;

/// A built-in backend; else loads libddp_<name>.so from DDP_BACKEND_PATH, or else from where this library lies, or else
/// from the loader's path.
/// Throws Error: unavailable when there is none or it does not load, mismatch when it is of another version.
const BackendPlugin& load_backend(std::string_view name);

}  // namespace ddp::collectives
