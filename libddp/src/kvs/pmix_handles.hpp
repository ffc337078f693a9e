// Owners for the C structures of PMIx, so that no error path forgets a destructor.
#pragma once

#include <pmix.h>

#include <cstddef>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::kvs {

/// A pmix_info_t array of fixed length. Move-only.
class PmixInfoArray {
 public:
  explicit PmixInfoArray(std::size_t size) : size_(size) { PMIX_INFO_CREATE(data_, size_); }
  PmixInfoArray(PmixInfoArray&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
  PmixInfoArray(const PmixInfoArray&) = delete;
  PmixInfoArray& operator=(const PmixInfoArray&) = delete;
  PmixInfoArray& operator=(PmixInfoArray&&) = delete;
  ~PmixInfoArray() {
    if (data_ != nullptr) PMIX_INFO_FREE(data_, size_);
  }

  void set(std::size_t index, const char* key, const void* value, pmix_data_type_t type) {
    PMIx_Info_load(&data_[index], key, value, type);
  }
  pmix_info_t* data() noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  pmix_info_t* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A value that PMIx_Get allocated.
class PmixValue {
 public:
  PmixValue() = default;
  PmixValue(PmixValue&& other) noexcept : value_(other.value_) { other.value_ = nullptr; }
  PmixValue(const PmixValue&) = delete;
  PmixValue& operator=(const PmixValue&) = delete;
  PmixValue& operator=(PmixValue&&) = delete;
  ~PmixValue() {
    if (value_ != nullptr) PMIX_VALUE_RELEASE(value_);
  }
  pmix_value_t** out() noexcept { return &value_; }
  const pmix_value_t* get() const noexcept { return value_; }

 private:
  pmix_value_t* value_ = nullptr;
};

/// A process name. pmix_proc_t has a fixed-size namespace field; longer names are cut as PMIX_LOAD_PROCID does.
inline pmix_proc_t make_proc(std::string_view name_space, pmix_rank_t rank) {
  pmix_proc_t proc;
  PMIX_PROC_CONSTRUCT(&proc);
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
    default: return named(fmt::format("PMIx: {}", PMIx_Error_string(status)));
  }
}

inline Error pmix_error(ErrorCode code, std::string attempted, std::string cause, pmix_status_t status,
                        std::string hint = {}) {
  return Error{{.code = code,
                .attempted = std::move(attempted),
                .cause = std::move(cause),
                .native = pmix_status_name(status),
                .ranks = {},
                .hint = std::move(hint)}};
}

}  // namespace ddp::kvs
