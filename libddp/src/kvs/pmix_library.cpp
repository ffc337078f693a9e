#include "kvs/pmix_library.hpp"

#include <dlfcn.h>

#include <mutex>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"

namespace ddp::kvs {
namespace {

[[noreturn]] void fail(std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "opening PMIx's library",
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

std::string file_of(const void* symbol, const std::string& otherwise) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

/// A second PMIx beside one whose symbols are global would call that one's functions.
void* open_visible() {
  void* const symbol = dlsym(RTLD_DEFAULT, "PMIx_Init");
  if (symbol == nullptr) return nullptr;
  void* const library = dlopen(file_of(symbol, {}).c_str(), RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr ? library : dlopen(nullptr, RTLD_NOW);  // in the program itself
}

void* open_library(const std::string& name) {
  if (void* visible = open_visible()) return visible;
  if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;  // the loaded one of this name first
  const char* reason = dlerror();
  fail(fmt::format("the process has loaded none, and the loader says: {}", reason == nullptr ? "no reason" : reason),
       "install PMIx 4.2 or newer on this node (Debian: libpmix2, Enterprise Linux: pmix), or add the folder of the "
       "launcher's libpmix.so.2 to LD_LIBRARY_PATH; srun --mpi=pmi2 and torchrun work without it");
}

}  // namespace

PmixLibrary::PmixLibrary(const std::string& name) {
  void* const library = open_library(name);
  std::string missing;
  const auto find = [&](auto& function, const char* symbol) {
    void* const found = dlsym(library, symbol);
    if (found == nullptr) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", symbol);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    if (found != nullptr && file_.empty()) file_ = file_of(found, name);
  };
#define DDP_PMIX_FIND(member, function) find(member, #function);
  DDP_PMIX_FUNCTIONS(DDP_PMIX_FIND)
#undef DDP_PMIX_FIND
  if (missing.empty()) return;
  fail(fmt::format("{}{} has no {}", file_.empty() ? name : file_,
                   get_version == nullptr ? "" : fmt::format(" ({})", get_version()), missing),
       "libddp needs PMIx 4.2 or newer; a process can use one PMIx only, so that which an MPI has loaded comes first");
}

const PmixLibrary& pmix() {
  // Never destroyed: libpmix's thread may run while the process ends.
  static const PmixLibrary* const library = [] {
    const auto* const opened = new PmixLibrary;  // NOLINT(*-owning-memory)
    base::log(base::LogLevel::debug, "PMIx's library is {}: {}", opened->file(), opened->get_version());
    return opened;
  }();
  return *library;
}

}  // namespace ddp::kvs
