#include "diagnostics/environment/nccl_file.hpp"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/unique_fd.hpp"
#include "diagnostics/environment/variable_table.hpp"

namespace ddp::diagnostics {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "NCCL_";
constexpr std::string_view kVersionText = "NCCL version ";
constexpr std::string_view kLoadersFile = "libnccl.so.2";
constexpr std::uint64_t kLargestConstants = std::uint64_t{64} << 20;  // NCCL 2.32 has 0.9 MiB

bool in_name(char letter) {
  return letter == '_' || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9');
}

bool read_at(int fd, std::uint64_t offset, void* into, std::size_t size) {
  auto* at = static_cast<char*>(into);
  while (size > 0) {
    const ssize_t got = ::pread(fd, at, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

/// The contents of .rodata; nothing for what is no such file.
std::optional<std::vector<char>> constants_of(int fd) {
  Elf64_Ehdr header{};
  if (!read_at(fd, 0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return std::nullopt;
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr)) return std::nullopt;
  if (header.e_shnum == 0 || header.e_shstrndx >= header.e_shnum) return std::nullopt;
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!read_at(fd, header.e_shoff, sections.data(), sections.size() * sizeof(Elf64_Shdr))) return std::nullopt;
  const Elf64_Shdr& strings = sections[header.e_shstrndx];
  if (strings.sh_size == 0 || strings.sh_size > kLargestConstants) return std::nullopt;
  std::vector<char> names(strings.sh_size);
  if (!read_at(fd, strings.sh_offset, names.data(), names.size())) return std::nullopt;
  names.back() = '\0';
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_name >= names.size() || std::strcmp(&names[section.sh_name], ".rodata") != 0) continue;
    if (section.sh_type != SHT_PROGBITS || section.sh_size > kLargestConstants) return std::nullopt;
    std::vector<char> constants(section.sh_size);
    if (!read_at(fd, section.sh_offset, constants.data(), constants.size())) return std::nullopt;
    return constants;
  }
  return std::nullopt;
}

std::string value_of(const base::Environment& environment, std::string_view name) {
  return environment.raw(name).value_or("");
}

struct Place {
  std::string path;
  std::string how;
};

/// Where the loader would find NCCL, for a program without a run path of its own.
std::optional<Place> loaders_choice(const base::Environment& environment, const std::string& root) {
  for (const std::string& library : base::words_of(value_of(environment, "LD_PRELOAD"), " :")) {
    if (fs::path(library).filename().string().starts_with("libnccl.so") && base::is_file(root, library)) {
      return Place{library, "LD_PRELOAD"};
    }
  }
  const auto found = base::find_library(environment, root, kLoadersFile);
  if (!found) return std::nullopt;
  return Place{found->path, found->by_variable ? "the loader's, by LD_LIBRARY_PATH" : "the loader's"};
}

}  // namespace

bool NcclFile::reads(std::string_view name) const {
  return std::binary_search(names.begin(), names.end(), name) ||
         std::find(plugin_names.begin(), plugin_names.end(), name) != plugin_names.end();
}

void scan_constants(std::span<const char> constants, NcclFile& file) {
  const std::string_view all{constants.data(), constants.size()};
  // Other sentences begin like it.
  for (auto at = all.find(kVersionText); at != std::string_view::npos && file.version.empty();
       at = all.find(kVersionText, at + 1)) {
    std::string_view text = all.substr(at + kVersionText.size(), 40);
    text = text.substr(0, text.find_first_not_of("0123456789.+abcdefghijklmnopqrstuvwxyz"));
    if (!text.empty() && text.front() >= '0' && text.front() <= '9') file.version = text;
  }
  for (auto at = all.find(kPrefix); at != std::string_view::npos; at = all.find(kPrefix, at + 1)) {
    auto end = at;
    while (end < all.size() && in_name(all[end])) ++end;
    const std::string_view name = all.substr(at, end - at);
    const bool ends = end < all.size() && all[end] == '\0' && name.size() > kPrefix.size();
    const bool begins = at == 0 || all[at - 1] == '\0';
    // A name can also follow a constant that has no end of its own: believe that of known names only.
    const bool after_other = at > 0 && !begins && all[at - 1] != '_' && find_variable(name) != nullptr;
    if (ends && (begins || after_other)) file.names.emplace_back(name);
    at = std::max(at, end - 1);
  }
  std::sort(file.names.begin(), file.names.end());
  file.names.erase(std::unique(file.names.begin(), file.names.end()), file.names.end());
}

NcclFile scan_nccl(const std::string& path, const std::string& root) {
  NcclFile file{.path = path};
  const base::UniqueFd fd{::open((root + path).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};  // it may be a FIFO
  if (fd.get() < 0) {
    file.problem = fmt::format("it cannot be opened: {}", base::errno_name(errno));
    return file;
  }
  const auto constants = constants_of(fd.get());
  if (!constants) {
    file.problem = "it is not a 64-bit ELF file with a section .rodata";
    return file;
  }
  scan_constants(*constants, file);
  if (file.names.empty()) file.problem = "it has no names of variables";
  return file;
}

NcclFile find_nccl(const base::NcclSurroundings& surroundings) {
  const std::string& root = surroundings.root;
  for (const base::NcclCandidate& candidate : base::nccl_candidates(surroundings)) {
    std::optional<Place> place;
    if (candidate.file == kLoadersFile) {
      place = loaders_choice(surroundings.environment, root);
    } else if (candidate.decisive || base::is_file(root, candidate.file)) {
      place = Place{candidate.file, candidate.found};
    }
    if (!place) continue;
    NcclFile file = scan_nccl(place->path, root);
    // Only PyTorch that was built with NCCL inside has its names.
    if (!candidate.decisive && candidate.loaded && !file.scanned()) continue;
    file.found = std::move(place->how);
    add_plugins(file, surroundings);
    return file;
  }
  return NcclFile{.problem = "none was found"};
}

namespace {

struct PluginKind {
  const char* variable;
  std::string_view file;  ///< without ".so", or "-NAME.so" for a value NAME
};

// NCCL's plugin/plugin_open.cc.
constexpr std::array kKinds{PluginKind{"NCCL_NET_PLUGIN", "libnccl-net"}, PluginKind{"NCCL_GIN_PLUGIN", "libnccl-gin"},
                            PluginKind{"NCCL_TUNER_PLUGIN", "libnccl-tuner"},
                            PluginKind{"NCCL_PROFILER_PLUGIN", "libnccl-profiler"},
                            PluginKind{"NCCL_ENV_PLUGIN", "libnccl-env"}};

/// The files that NCCL tries for a value, the first that is there counts.
std::vector<std::string> tried_for(const PluginKind& kind, const std::string& value) {
  const std::string file{kind.file};
  if (value.empty()) return {file + ".so"};
  return {value, file + "-" + value + ".so"};
}

/// As dlopen(3) takes a name: with a slash it is a path. Empty: it is not there.
std::string find_plugin(const base::NcclSurroundings& surroundings, const std::string& name) {
  if (name.find('/') != std::string::npos) return base::is_file(surroundings.root, name) ? name : std::string{};
  const auto found = base::find_library(surroundings.environment, surroundings.root, name);
  return found ? found->path : std::string{};
}

}  // namespace

std::vector<FoundPlugin> find_plugins(const base::NcclSurroundings& surroundings) {
  std::vector<FoundPlugin> found;
  for (const PluginKind& kind : kKinds) {
    const std::string value = surroundings.environment.raw(kind.variable).value_or("");
    if (value == "none") continue;
    auto words = base::words_of(value, ",");
    if (words.empty()) words.emplace_back();
    for (const std::string& word : words) {
      for (const std::string& name : tried_for(kind, word)) {
        const std::string path = find_plugin(surroundings, name);
        if (path.empty()) continue;
        found.push_back({.variable = kind.variable, .path = path, .by_default = value.empty()});
        break;
      }
    }
  }
  return found;
}

void add_plugins(NcclFile& file, const base::NcclSurroundings& surroundings) {
  std::vector<std::string> paths;
  const auto add = [&](const std::string& path) {
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
  };
  for (const std::string& object : surroundings.loaded) {
    const std::string name = std::filesystem::path(object).filename().string();
    const auto is = [&](const PluginKind& kind) { return name.starts_with(kind.file); };
    if (std::any_of(kKinds.begin(), kKinds.end(), is)) add(object);
  }
  for (const FoundPlugin& plugin : find_plugins(surroundings)) add(plugin.path);
  for (const std::string& path : paths) {
    const NcclFile plugin = scan_nccl(path, surroundings.root);
    file.plugin_names.insert(file.plugin_names.end(), plugin.names.begin(), plugin.names.end());
    file.found += (path == paths.front() ? "; with " : ", ") + path;
  }
}

}  // namespace ddp::diagnostics
