#include "collectives/nccl/nccl_library.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"

namespace ddp::collectives::nccl {
namespace {

[[noreturn]] void fail(std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "opening NCCL",
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

/// The handle, or nothing and @p problem.
void* open_candidate(const base::NcclCandidate& candidate, std::string& problem) {
  if (!candidate.loaded && candidate.file.find('/') != std::string::npos && candidate.file.front() != '/') {
    problem = fmt::format("{} is a relative path, which may mean another file by now", candidate.file);
    return nullptr;
  }
  const int flags = RTLD_NOW | RTLD_LOCAL | (candidate.loaded ? RTLD_NOLOAD : 0);
  void* handle = dlopen(candidate.file.c_str(), flags);
  if (handle == nullptr) {
    const char* reason = dlerror();
    problem = reason == nullptr ? "it is not loaded any more" : reason;
    return nullptr;
  }
  if (candidate.decisive || dlsym(handle, "ncclGetVersion") != nullptr) return handle;
  problem = fmt::format("{}: it has no ncclGetVersion", candidate.file);
  dlclose(handle);
  return nullptr;
}

/// The file that has @p function.
std::string file_of(const void* function, const std::string& otherwise) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

}  // namespace

NcclLibrary::NcclLibrary(const base::NcclSurroundings& surroundings) {
  void* handle = nullptr;
  std::string tried;
  for (const base::NcclCandidate& candidate : base::nccl_candidates(surroundings)) {
    std::string problem;
    handle = open_candidate(candidate, problem);
    if (handle != nullptr) {
      file_ = candidate.file;
      found_ = candidate.found;
      break;
    }
    tried += fmt::format("{}{} ({})", tried.empty() ? "" : "; ", problem, candidate.found);
    if (candidate.decisive) break;
  }
  if (handle == nullptr) {
    fail(tried,
         "install NCCL 2.18 or newer (PyTorch for CUDA brings it), or set DDP_NCCL_LIBRARY to the absolute path of its "
         "libnccl.so.2");
  }

  std::string missing;
  each_function([&](auto member, const char* name, int since) {
    using Function = std::remove_reference_t<decltype(functions_.*member)>;
    functions_.*member = reinterpret_cast<Function>(dlsym(handle, name));
    if (functions_.*member == nullptr && since == 0) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  });
  const std::string where = fmt::format("{} ({})", file_, found_);
  constexpr auto kRemedy = "set DDP_NCCL_LIBRARY to the libnccl.so.2 of NCCL 2.18 or newer";
  constexpr auto kLoadedRemedy = "use a PyTorch that brings NCCL 2.18 or newer: a process can use one NCCL only";
  const auto* hint = found_ == "loaded already" ? kLoadedRemedy : kRemedy;
  if (functions_.get_version == nullptr || functions_.get_version(&version_) != ncclSuccess) {
    fail(fmt::format("{} does not report its version", where), hint);
  }
  if (version_ < kOldestVersion) {
    fail(fmt::format("{} is NCCL {}, which is too old", where, version_text(version_)), hint);
  }
  if (!missing.empty()) fail(fmt::format("{}, NCCL {}, has no {}", where, version_text(version_), missing), hint);
  file_ = file_of(reinterpret_cast<const void*>(functions_.get_version), file_);
}

const NcclLibrary& NcclLibrary::process() {
  static std::mutex mutex;
  // Never destroyed: a watchdog may call NCCL while the process ends.
  static const NcclLibrary* library = nullptr;
  const std::lock_guard lock(mutex);
  if (library == nullptr) {
    library = new NcclLibrary(base::NcclSurroundings::process());  // NOLINT(*-owning-memory)
    base::log(base::LogLevel::info, "NCCL {} is {} ({})", version_text(library->version()), library->file(),
              library->found());
  }
  return *library;
}

ncclConfig_t NcclLibrary::config() const noexcept {
  return {.size = sizeof(ncclConfig_t),
          .magic = kMagic,
          .version = static_cast<unsigned>(std::min(kConfigVersion, version_)),
          .blocking = kUndefinedInt,
          .cgaClusterSize = kUndefinedInt,
          .minCTAs = kUndefinedInt,
          .maxCTAs = kUndefinedInt,
          .netName = nullptr,
          .splitShare = kUndefinedInt,
          .trafficClass = kUndefinedInt,
          .commName = nullptr,
          .collnetEnable = kUndefinedInt,
          .CTAPolicy = kUndefinedInt,
          .shrinkShare = kUndefinedInt,
          .nvlsCTAs = kUndefinedInt,
          .nChannelsPerNetPeer = kUndefinedInt,
          .nvlinkCentricSched = kUndefinedInt,
          .graphUsageMode = kUndefinedInt,
          .numRmaCtx = kUndefinedInt,
          .maxP2pPeers = kUndefinedInt,
          .graphStreamOrdering = kUndefinedInt};
}

std::string NcclLibrary::last_error(ncclComm_t comm) const {
  const char* text = functions_.get_last_error(comm);
  if (text == nullptr) return {};
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  const auto last = line.find_last_not_of(' ');
  line.erase(last == std::string::npos ? 0 : last + 1);
  return line;
}

std::string version_text(int version) {
  constexpr int kMajor = 10'000;
  constexpr int kMinor = 100;
  if (version < kMajor) return fmt::format("{}.{}.{}", version / 1000, version / kMinor % 10, version % kMinor);
  return fmt::format("{}.{}.{}", version / kMajor, version / kMinor % kMinor, version % kMinor);
}

std::string to_string(ncclResult_t result) {
  constexpr std::array kNames{"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                              "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                              "ncclRemoteError",   "ncclInProgress",         "ncclTimeout"};
  const auto number = static_cast<unsigned>(result);
  return fmt::format("{} ({})", number < kNames.size() ? kNames.at(number) : "ncclResult_t", number);
}

}  // namespace ddp::collectives::nccl
