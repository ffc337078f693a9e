#include "base/library_search.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>

namespace ddp::base {
namespace {

namespace fs = std::filesystem;

/// What /etc/ld.so.cache says of the file (glibc's dl-cache.h, struct cache_file_new); empty: nothing.
std::string in_loader_cache(const std::string& path, std::string_view name) {
  struct Header {
    char magic[20];
    std::uint32_t count;
    std::uint32_t others[6];
  };
  struct Entry {
    std::int32_t flags;
    std::uint32_t key;
    std::uint32_t value;
    std::uint32_t version;
    std::uint64_t capabilities;
  };
  static_assert(sizeof(Header) == 48 && sizeof(Entry) == 24);
  std::ifstream file(path, std::ios::binary);
  const std::string cache{std::istreambuf_iterator<char>(file), {}};
  const auto start = cache.find("glibc-ld.so.cache1.1");
  if (start == std::string::npos || cache.size() - start < sizeof(Header)) return {};
  const std::string_view body = std::string_view(cache).substr(start);
  const auto text_at = [&](std::uint32_t offset) {
    const auto text = offset < body.size() ? body.substr(offset) : std::string_view{};
    return text.substr(0, text.find('\0'));
  };
  Header header{};
  std::memcpy(&header, body.data(), sizeof header);
  for (std::uint64_t i = 0; i < header.count; ++i) {
    const std::uint64_t at = sizeof header + i * sizeof(Entry);
    if (at + sizeof(Entry) > body.size()) break;
    Entry entry{};
    std::memcpy(&entry, body.data() + at, sizeof entry);
    if (text_at(entry.key) == name) return std::string(text_at(entry.value));
  }
  return {};
}

}  // namespace

std::vector<std::string> words_of(const std::string& list, const char* separators) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < list.size();) {
    const auto end = std::min(list.find_first_of(separators, begin), list.size());
    if (end > begin) words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

bool is_file(const std::string& root, const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(root + path.string(), ignored);
}

std::optional<FoundLibrary> find_library(const Environment& environment, const std::string& root,
                                         std::string_view name) {
  for (const std::string& folder : words_of(environment.raw("LD_LIBRARY_PATH").value_or(""), ":;")) {
    const fs::path path = fs::path(folder) / name;
    if (is_file(root, path)) return FoundLibrary{.path = path.string(), .by_variable = true};
  }
  if (const std::string cached = in_loader_cache(root + "/etc/ld.so.cache", name);
      !cached.empty() && is_file(root, cached)) {
    return FoundLibrary{.path = cached, .by_variable = false};
  }
  for (const auto* folder : {"/lib64", "/usr/lib64", "/lib", "/usr/lib"}) {
    const fs::path path = fs::path(folder) / name;
    if (is_file(root, path)) return FoundLibrary{.path = path.string(), .by_variable = false};
  }
  return std::nullopt;
}

}  // namespace ddp::base
