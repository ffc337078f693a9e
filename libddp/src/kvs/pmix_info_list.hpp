// Typed building and ownership of the pmix_info_t arrays that PMIx calls take.
#pragma once

#include <pmix.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddp::kvs {

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
