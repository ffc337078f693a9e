#include "kvs/pmix_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"

namespace ddp::kvs {
namespace {

namespace fs = std::filesystem;

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

/// Beside libddp.so, or below the folder of a program: package/lib/libddp and package/bin.
void* open_inside(const std::string& name) {
  std::error_code ignored;
  const fs::path own = file_of(reinterpret_cast<const void*>(&open_inside), {});
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  for (const fs::path& folder : {own.parent_path() / "libddp", program.parent_path() / "../lib/libddp"}) {
    const fs::path file = folder / name;
    if (!file.is_absolute() || !fs::exists(file, ignored)) continue;
    if (void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

}  // namespace

std::string PmixLibrary::find_functions(void* library, const std::string& name) {
  std::string missing;
  file_.clear();
  const auto find = [&](auto& function, const char* symbol) {
    void* const found = dlsym(library, symbol);
    if (found == nullptr) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", symbol);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    if (found != nullptr && file_.empty()) file_ = file_of(found, name);
  };
#define DDP_PMIX_FIND(member, function) find(member, #function);
  DDP_PMIX_FUNCTIONS(DDP_PMIX_FIND)
#undef DDP_PMIX_FIND
  library_ = library;
  return missing;
}

PmixLibrary::PmixLibrary(const std::string& name) {
  void* const visible = open_visible();
  // By its name: the loaded one first.
  void* const found = visible != nullptr ? visible : dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::string reason;
  if (found == nullptr) {
    const char* const said = dlerror();
    reason = said == nullptr ? "no reason" : said;
  }
  const std::string missing = found == nullptr ? "" : find_functions(found, name);
  if (found != nullptr && missing.empty()) return;
  const std::string lacking = fmt::format("{}{} has no {}", file_.empty() ? name : file_,
                                          get_version == nullptr ? "" : fmt::format(" ({})", get_version()), missing);
  if (void* const inside = visible != nullptr ? nullptr : open_inside(name);
      inside != nullptr && find_functions(inside, name).empty()) {
    base::log(base::LogLevel::debug, "PMIx's library is the one inside libddp: {}",
              found == nullptr ? reason : lacking);
    return;
  }
  if (found == nullptr) {
    fail(fmt::format("the process has loaded none, and the loader says: {}", reason),
         "install PMIx 4.2 or newer on this node (Debian: libpmix2, Enterprise Linux: pmix), or add the folder of the "
         "launcher's libpmix.so.2 to LD_LIBRARY_PATH; srun --mpi=pmi2 and torchrun work without it");
  }
  fail(lacking,
       "libddp needs PMIx 4.2 or newer; a process can use only one PMIx: one that an MPI has loaded takes precedence");
}

void* PmixLibrary::function(const char* symbol) const noexcept { return dlsym(library_, symbol); }

const PmixLibrary& pmix() {
  // Never destroyed: libpmix's thread may run while the process ends.
  static const PmixLibrary* const library = [] {
    const auto* const opened = new PmixLibrary;  // NOLINT(*-owning-memory)
    base::log(base::LogLevel::debug, "PMIx's library is {}: {}", opened->file(), opened->get_version());
    return opened;
  }();
  return *library;
}

InfoList::~InfoList() {
  for (pmix_info_t& info : infos_) pmix().value_destruct(&info.value);
}

InfoList& InfoList::text(const char* key, const std::string& value) { return load(key, value.c_str(), PMIX_STRING); }
InfoList& InfoList::number32(const char* key, std::uint32_t value) { return load(key, &value, PMIX_UINT32); }
InfoList& InfoList::number16(const char* key, std::uint16_t value) { return load(key, &value, PMIX_UINT16); }
InfoList& InfoList::rank(const char* key, pmix_rank_t value) { return load(key, &value, PMIX_PROC_RANK); }
InfoList& InfoList::integer(const char* key, int value) { return load(key, &value, PMIX_INT); }
InfoList& InfoList::boolean(const char* key, bool value) { return load(key, &value, PMIX_BOOL); }
InfoList& InfoList::regex(const char* key, const char* value) { return load(key, value, PMIX_REGEX); }

InfoList& InfoList::list(const char* key, InfoList&& elements) {
  // By hand: whether PMIx_Info_load copies a data array or keeps the pointer depends on the library's version. The
  // memory comes from malloc because PMIx_Value_destruct gives it to free.
  const std::size_t size_bytes = elements.size() * sizeof(pmix_info_t);
  auto* array = static_cast<pmix_data_array_t*>(std::calloc(1, sizeof(pmix_data_array_t)));
  void* copy = std::malloc(size_bytes);
  if (array == nullptr || copy == nullptr) {
    std::free(array);
    std::free(copy);
    throw std::bad_alloc{};
  }
  std::memcpy(copy, elements.infos_.data(), size_bytes);
  array->type = PMIX_INFO;
  array->size = elements.size();
  array->array = copy;
  elements.infos_.clear();

  pmix_info_t& info = infos_.emplace_back();
  std::strncpy(info.key, key, PMIX_MAX_KEYLEN);
  info.value.type = PMIX_DATA_ARRAY;
  info.value.data.darray = array;
  return *this;
}

InfoList& InfoList::load(const char* key, const void* value, pmix_data_type_t type) {
  pmix_info_t& info = infos_.emplace_back();  // value-initialised: all zero
  const pmix_status_t status = pmix().info_load(&info, key, value, type);
  require_pmix(status, std::string("storing the PMIx value ") + key);
  return *this;
}

}  // namespace ddp::kvs
