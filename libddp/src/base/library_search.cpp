#include "base/library_search.hpp"

#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <utility>

#include <ddp/python_prefix.hpp>

namespace ddp {
namespace {

std::mutex mutex;

std::string& known_prefix() {
  static auto* prefix = new std::string;  // never destroyed: threads may ask while the process ends
  return *prefix;
}

}  // namespace

void set_python_prefix(std::string prefix) {
  const std::lock_guard lock(mutex);
  known_prefix() = std::move(prefix);
}

std::string base::python_prefix() {
  const std::lock_guard lock(mutex);
  return known_prefix();
}

}  // namespace ddp

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

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFile = "libnccl.so.2";

std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

/// In site-packages, where PyTorch's wheels have it.
fs::path in_packages(const fs::path& packages) { return packages / "nvidia" / "nccl" / "lib" / kFile; }

/// site-packages of the Python environment @p prefix, as far as there are any.
std::vector<fs::path> packages_of(const std::string& root, const fs::path& prefix) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto* folder : {"lib", "lib64"}) {
    for (fs::directory_iterator entry{root + (prefix / folder).string(), ignored}, end; entry != end;
         entry.increment(ignored)) {
      if (entry->path().filename().string().rfind("python3", 0) != 0) continue;
      for (const auto* packages : {"site-packages", "dist-packages"}) {
        // lib64 may be a link to lib. Below a root of its own, links would lead out of it.
        std::error_code missing;
        const fs::path path = root.empty() ? fs::canonical(entry->path() / packages, missing)
                                           : prefix / folder / entry->path().filename() / packages;
        if (!missing && fs::is_directory(root + path.string(), missing)) found.push_back(path);
      }
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

int add_name(dl_phdr_info* object, std::size_t /*size*/, void* names) {
  if (object->dlpi_name != nullptr && object->dlpi_name[0] != '\0') {
    static_cast<std::vector<std::string>*>(names)->emplace_back(object->dlpi_name);
  }
  return 0;
}

/// By what the program was started, as /proc/self/exe would be the Python behind the environment's link. Through the
/// PATH it has no folder, but Python then also sees VIRTUAL_ENV or needs none; a relative path may mean another file by
/// now.
std::string program_of_process() {
  std::ifstream arguments("/proc/self/cmdline", std::ios::binary);
  std::string program;
  std::getline(arguments, program, '\0');
  if (program.rfind('/', 0) == 0) return program;
  std::error_code error;
  const fs::path link = fs::read_symlink("/proc/self/exe", error);
  return error ? program : link.string();
}

}  // namespace

NcclSurroundings NcclSurroundings::process() {
  NcclSurroundings process{
      .program = program_of_process(), .environment = Environment::process(), .python_prefix = base::python_prefix()};
  dl_iterate_phdr(&add_name, &process.loaded);
  return process;
}

std::vector<std::string> python_packages(const NcclSurroundings& surroundings, const std::string& program) {
  const fs::path prefix = fs::path(program).parent_path().parent_path();
  std::vector<fs::path> prefixes;
  std::error_code ignored;
  if (!fs::exists(surroundings.root + (prefix / "pyvenv.cfg").string(), ignored)) {
    const std::string home = surroundings.environment.raw("HOME").value_or("");
    if (home.starts_with('/') && !surroundings.environment.has("PYTHONNOUSERSITE"))
      prefixes.push_back(fs::path(home) / ".local");
    if (prefix == "/usr") prefixes.emplace_back("/usr/local");  // where Debian's pip installs
  }
  prefixes.push_back(prefix);
  std::vector<std::string> folders;
  for (const fs::path& each : prefixes) {
    for (const fs::path& packages : packages_of(surroundings.root, each)) folders.push_back(packages.string());
  }
  return folders;
}

std::vector<NcclCandidate> nccl_candidates(const NcclSurroundings& surroundings) {
  std::vector<NcclCandidate> candidates;
  const auto add = [&](const fs::path& file, std::string found, bool loaded, bool decisive) {
    if (!loaded && !decisive && file != kFile && !file.is_absolute()) return;
    const auto same = [&](const NcclCandidate& known) { return known.file == file; };
    if (std::any_of(candidates.begin(), candidates.end(), same)) return;
    candidates.push_back({file.string(), std::move(found), loaded, decisive});
  };

  // libnccl-net.so and the like are plugins of it.
  for (const std::string& object : surroundings.loaded) {
    if (name_of(object).rfind("libnccl.so", 0) == 0) add(object, "loaded already", true, true);
  }
  // PyTorch that was built from source may have it inside.
  for (const std::string& object : surroundings.loaded) {
    if (name_of(object).rfind("libtorch_cuda", 0) == 0) add(object, "inside PyTorch, loaded already", true, false);
  }
  if (const std::string file = surroundings.environment.text("DDP_NCCL_LIBRARY"); !file.empty()) {
    add(file, "DDP_NCCL_LIBRARY", false, true);
  }
  for (const std::string& object : surroundings.loaded) {
    const fs::path folder = fs::path(object).parent_path();  // site-packages/torch/lib
    const std::string name = name_of(object);
    if (name.rfind("libtorch", 0) != 0 && name.rfind("libc10", 0) != 0) continue;
    add(folder / kFile, "beside the loaded PyTorch", false, false);
    add(in_packages(folder.parent_path().parent_path()), "beside the loaded PyTorch", false, false);
  }
  for (const std::string_view name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = surroundings.environment.raw(name).value_or("");
    if (!fs::path(prefix).is_absolute()) continue;
    for (const fs::path& packages : packages_of(surroundings.root, prefix))
      add(in_packages(packages), "packages of " + std::string(name), false, false);
  }
  const fs::path program = fs::path(surroundings.python_prefix).is_absolute()
                               ? fs::path(surroundings.python_prefix) / "bin" / "python3"
                               : fs::path(surroundings.program);
  if (program.is_absolute() && name_of(program).rfind("python", 0) == 0) {
    for (const fs::path packages : python_packages(surroundings, program))
      add(in_packages(packages), "packages of " + surroundings.python, false, false);
  }
  add(fs::path(kFile), "the loader's", false, false);
  return candidates;
}

}  // namespace ddp::base
