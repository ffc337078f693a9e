// Turns PMIx status codes into ddp::Error.
#pragma once

#include <string>
#include <utility>

#include <pmix.h>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::launcher {

inline Error pmix_error(std::string attempted, pmix_status_t status) {
  return Error{{.code = ErrorCode::unavailable,
                .attempted = std::move(attempted),
                .cause = "the PMIx library refused",
                .native = fmt::format("{} ({})", PMIx_Error_string(status), status),
                .ranks = {},
                .hint = {}}};
}

/// PMIX_OPERATION_SUCCEEDED means "done already": calls without a callback may return either.
inline void require_pmix(pmix_status_t status, const char* attempted) {
  if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED) throw pmix_error(attempted, status);
}

}  // namespace ddp::launcher
