#include "kvs/pmix_info_list.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "kvs/pmix_handles.hpp"

namespace ddp::kvs {

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
