// libpmix: opened on demand, its functions, and owners of what it allocates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <pmix.h>

#include <ddp/error.hpp>

namespace ddp::kvs {

// PMIx's library (libpmix.so.2), opened when a rank first uses PMIx: nothing of libddp.so links it, so programs that
// never use PMIx map neither it nor what it needs, and an MPI that brings its own PMIx finds that one.

/// X(member, function). All are in PMIx 4.2, the oldest that serves, and in all since. PMIx's macros must not be used
/// beside them: those of newer headers call functions that are not in this table.
#define DDP_PMIX_FUNCTIONS(X)          \
  X(init, PMIx_Init)                   \
  X(finalize, PMIx_Finalize)           \
  X(get_version, PMIx_Get_version)     \
  X(error_string, PMIx_Error_string)   \
  X(get, PMIx_Get)                     \
  X(get_nb, PMIx_Get_nb)               \
  X(put, PMIx_Put)                     \
  X(commit, PMIx_Commit)               \
  X(fence_nb, PMIx_Fence_nb)           \
  X(resolve_nodes, PMIx_Resolve_nodes) \
  X(info_load, PMIx_Info_load)         \
  X(value_destruct, PMIx_Value_destruct)

/// The table. Its functions are called as PMIx's own: pmix().put(scope, key, &value).
struct PmixFunctions {
#define DDP_PMIX_MEMBER(member, function) decltype(&(function)) member = nullptr;
  DDP_PMIX_FUNCTIONS(DDP_PMIX_MEMBER)
#undef DDP_PMIX_MEMBER
};

/// The opened library. Looked for in this order: a PMIx whose functions the program can see (an MPI's), the
/// libpmix.so.2 that the process has loaded, the loader's (LD_LIBRARY_PATH, the run path of libddp.so, the system's),
/// and, where there is none or one that does not serve, the one that a wheel has inside, in the folder libddp beside
/// libddp.so. PMIx is one per process. Never closed. Immutable: any thread.
class PmixLibrary : public PmixFunctions {
 public:
  /// Throws Error(unavailable) that says what was tried and what is missing. @param name for tests
  explicit PmixLibrary(const std::string& name = "libpmix.so.2");

  const std::string& file() const noexcept { return file_; }  ///< where the loader found it
  /// One that is not in the table; null if the library has none of this name.
  void* function(const char* symbol) const noexcept;

 private:
  /// Fills the table from @p library; the names of what it lacks.
  std::string find_functions(void* library, const std::string& name);
  void* library_ = nullptr;
  std::string file_;
};

/// The process's PMIx, opened at the first call. Throws as the constructor does, then tries anew at the next call.
const PmixLibrary& pmix();

// Owners and names for what the C interface of PMIx returns: values, process names, status codes.

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

/// In a request for a rank's values: only whether the rank has put the one that is named here is asked. ddprun's
/// servers answer with the status instead of the values, and ask once for all ranks of the job; others give the values.
inline constexpr auto kArrivalOf = "ddp.arrival";
inline constexpr pmix_status_t kHasArrived = PMIX_EXTERNAL_ERR_BASE - 1;

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

// Typed building and ownership of the pmix_info_t arrays that PMIx calls take.

/// An array of key-value pairs. Owns its elements and what they point to. Move-only.
class InfoList {
 public:
  InfoList() = default;
  InfoList(InfoList&& other) noexcept : infos_(std::move(other.infos_)) { other.infos_.clear(); }
  InfoList& operator=(InfoList&&) = delete;
  ~InfoList();

  /// Values are copied. Each returns *this, and throws Error(unavailable) when PMIx cannot store the value.
  InfoList& text(const char* key, const std::string& value);
  InfoList& number32(const char* key, std::uint32_t value);
  InfoList& number16(const char* key, std::uint16_t value);
  InfoList& rank(const char* key, pmix_rank_t value);
  InfoList& integer(const char* key, int value);
  InfoList& boolean(const char* key, bool value);
  /// A compressed list from PMIx_generate_regex or PMIx_generate_ppn: no plain text, it may contain zero bytes.
  InfoList& regex(const char* key, const char* value);
  /// A whole list as the value of one key (PMIX_PROC_DATA); @p elements is emptied.
  InfoList& list(const char* key, InfoList&& elements);

  pmix_info_t* data() { return infos_.data(); }
  std::size_t size() const { return infos_.size(); }
  const pmix_info_t& operator[](std::size_t index) const { return infos_[index]; }

 private:
  InfoList& load(const char* key, const void* value, pmix_data_type_t type);

  std::vector<pmix_info_t> infos_;  // plain data: moving the elements moves what they own
};

}  // namespace ddp::kvs
