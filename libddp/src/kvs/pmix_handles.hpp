// Owners and names for what the C interface of PMIx returns: values, process names, status codes.
#pragma once

#include <pmix.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "kvs/pmix_library.hpp"

namespace ddp::kvs {

/// A value that PMIx_Get allocated.
class PmixValue {
 public:
  PmixValue() = default;
  PmixValue(PmixValue&& other) noexcept : value_(other.value_) { other.value_ = nullptr; }
  PmixValue(const PmixValue&) = delete;
  PmixValue& operator=(const PmixValue&) = delete;
  PmixValue& operator=(PmixValue&&) = delete;
  ~PmixValue() {
    if (value_ == nullptr) return;
    pmix().value_destruct(value_);
    std::free(value_);
  }
  pmix_value_t** out() noexcept { return &value_; }
  const pmix_value_t* get() const noexcept { return value_; }

 private:
  pmix_value_t* value_ = nullptr;
};

/// A process name. pmix_proc_t has a fixed-size namespace field; longer names are cut, as by PMIx itself.
inline pmix_proc_t make_proc(std::string_view name_space, pmix_rank_t rank) {
  pmix_proc_t proc{};
  const std::size_t length = std::min(name_space.size(), std::size_t{PMIX_MAX_NSLEN});
  name_space.copy(proc.nspace, length);
  proc.nspace[length] = '\0';
  proc.rank = rank;
  return proc;
}

/// "PMIX_ERR_UNREACH (-25)": the constant's name, which is what people search for, not PMIx_Error_string's own
/// spelling.
inline std::string pmix_status_name(pmix_status_t status) {
  const auto named = [&](std::string_view name) { return fmt::format("{} ({})", name, status); };
  switch (status) {
    case PMIX_SUCCESS: return named("PMIX_SUCCESS");
    case PMIX_ERR_UNREACH: return named("PMIX_ERR_UNREACH");
    case PMIX_ERR_TIMEOUT: return named("PMIX_ERR_TIMEOUT");
    case PMIX_ERR_NOT_FOUND: return named("PMIX_ERR_NOT_FOUND");
    case PMIX_ERR_NOT_SUPPORTED: return named("PMIX_ERR_NOT_SUPPORTED");
    case PMIX_ERR_LOST_CONNECTION: return named("PMIX_ERR_LOST_CONNECTION");
    case PMIX_ERR_INIT: return named("PMIX_ERR_INIT");
    case PMIX_ERR_BAD_PARAM: return named("PMIX_ERR_BAD_PARAM");
    case PMIX_ERR_INVALID_NAMESPACE: return named("PMIX_ERR_INVALID_NAMESPACE");
    case PMIX_ERR_PROC_ENTRY_NOT_FOUND: return named("PMIX_ERR_PROC_ENTRY_NOT_FOUND");
    case PMIX_ERR_TYPE_MISMATCH: return named("PMIX_ERR_TYPE_MISMATCH");
    default: return named(fmt::format("PMIx: {}", pmix().error_string(status)));
  }
}

inline Error pmix_error(ErrorCode code, std::string attempted, std::string cause, pmix_status_t status,
                        std::string hint = {}) {
  return Error{{.code = code,
                .attempted = std::move(attempted),
                .cause = std::move(cause),
                .native = pmix_status_name(status),
                .hint = std::move(hint)}};
}

/// Throws Error(unavailable) unless the call succeeded. PMIX_OPERATION_SUCCEEDED means "done already": calls without a
/// callback may return either.
inline void require_pmix(pmix_status_t status, std::string attempted) {
  if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED) return;
  throw pmix_error(ErrorCode::unavailable, std::move(attempted), "the PMIx library refused", status);
}

}  // namespace ddp::kvs
