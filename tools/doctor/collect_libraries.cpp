#include "doctor/collect_libraries.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/library_search.hpp"
#include "base/unique_fd.hpp"
#include "diagnostics/environment/nccl_file.hpp"
#include "examination.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::tools::doctor {

std::string digest_of(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

std::string digest_of_lines(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) return {};
  std::string lines;
  for (std::string line; std::getline(stream, line);) {
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    lines += line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1) + '\n';
  }
  return digest_of(lines);
}

// Libraries that a rank's NCCL would open, without opening them: its plugins, verbs, libfabric, further NCCLs.

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestPlugin = std::size_t{32} << 20;  // usual are 0.2 to 2 MiB
constexpr const char* kNcclFile = "libnccl.so.2";

std::string contents(const fs::path& file) {
  std::error_code ignored;
  std::ifstream stream(file, std::ios::binary);
  std::string bytes(std::min(static_cast<std::size_t>(fs::file_size(file, ignored)), kLargestPlugin), '\0');
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamsize>(stream.gcount(), 0)));
  return bytes;
}

/// By the libraries that it needs: aws-ofi-nccl has libfabric's, NVIDIA's of HPC-X has SHARP's or UCX'.
std::string network_of(const std::string& bytes) {
  const auto needs = [&](std::string_view library) { return bytes.find(library) != std::string::npos; };
  if (needs("libfabric.so")) return "libfabric";
  if (needs("libsharp_coll.so") || needs("libucp.so")) return "InfiniBand";
  return {};
}

/// Whether a device file may be opened, which a cgroup and the file's mode decide.
std::string why_not_open(const fs::path& file) {
  const base::UniqueFd fd{::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK)};
  return fd ? std::string{} : fmt::format("{} may not be opened: {}", file.string(), base::errno_name(errno));
}

std::string find_verbs_problem(const fs::path& root, const base::Environment& environment) {
  if (topology::names_in(root / "sys/class/infiniband").empty()) return {};
  const fs::path folder = root / "dev/infiniband";
  std::vector<std::string> devices = topology::names_in(folder);
  std::erase_if(devices, [](const std::string& name) { return !name.starts_with("uverbs"); });
  if (devices.empty()) return "there is no /dev/infiniband/uverbs*";
  std::string problem;
  for (const std::string& name : devices) {
    problem = why_not_open(folder / name);
    if (problem.empty()) break;  // one is enough: others may be another job's
  }
  if (!problem.empty()) return problem;
  const std::string prefix = root == "/" ? std::string{} : root.string();
  // NCCL's misc/ibvwrap.cc
  for (const char* library : {"libibverbs.so", "libibverbs.so.1"}) {
    if (base::find_library(environment, prefix, library)) return {};
  }
  return "the loader finds no libibverbs.so.1";
}

/// All that LD_LIBRARY_PATH has, as the second folder counts as soon as the first one's file goes away or is hidden by
/// a container's; only such as differ from the one that is taken.
std::vector<std::string> find_copies(const std::string& root, const base::Environment& environment) {
  std::vector<std::string> copies;
  std::vector<std::string> seen;
  std::string taken;
  for (const std::string& folder : base::words_of(environment.raw("LD_LIBRARY_PATH").value_or(""), ":;")) {
    std::error_code status;
    const fs::path path = fs::path(folder) / kNcclFile;
    const std::string real = fs::canonical(root + path.string(), status).string();
    if (status || std::find(seen.begin(), seen.end(), real) != seen.end()) continue;
    seen.push_back(real);
    const std::string version = diagnostics::scan_nccl(path.string(), root).version;
    if (version.empty()) continue;
    if (taken.empty()) taken = version;
    if (version != taken) copies.push_back(fmt::format("{} ({})", version, path.string()));
  }
  return copies;
}

// Variables that name what must be there before the program starts: a file, or the folder of a new one.
struct NamedFile {
  const char* variable;
  bool new_file;
};
constexpr std::array kNamedFiles{NamedFile{"NCCL_TOPO_FILE", false},
                                 NamedFile{"NCCL_GRAPH_FILE", false},
                                 NamedFile{"NCCL_CONF_FILE", false},
                                 NamedFile{"NCCL_TUNER_CONFIG_FILE", false},
                                 NamedFile{"NCCL_DEBUG_FILE", true},
                                 NamedFile{"NCCL_TOPO_DUMP_FILE", true},
                                 NamedFile{"NCCL_GRAPH_DUMP_FILE", true},
                                 NamedFile{"TORCH_FR_DUMP_TEMP_FILE", true},
                                 NamedFile{"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", true}};

/// The folder of a name in which the program replaces "%h" and the like: without what depends on that.
fs::path folder_of(std::string name) {
  name.resize(std::min(name.find('%'), name.size()));
  return fs::path(name).parent_path();
}

}  // namespace

void collect_libraries(RankFacts& rank, const fs::path& root, const base::NcclSurroundings& surroundings) {
  const base::Environment& environment = surroundings.environment;
  const std::string prefix = root == "/" ? std::string{} : root.string();
  rank.verbs_problem = find_verbs_problem(root, environment);
  rank.libfabric = base::find_library(environment, prefix, "libfabric.so.1").has_value();
  rank.nccl_copies = find_copies(prefix, environment);
  for (const diagnostics::FoundPlugin& plugin : diagnostics::find_plugins(surroundings)) {
    const std::string bytes = contents(prefix + plugin.path);
    rank.plugins.push_back({.variable = plugin.variable,
                            .path = plugin.path,
                            .digest = digest_of(bytes),
                            .network = network_of(bytes),
                            .by_default = plugin.by_default});
  }
  for (const NamedFile& each : kNamedFiles) {
    const std::string value = rank.variable(each.variable);
    if (value.empty()) continue;
    const fs::path wanted = each.new_file ? folder_of(value) : fs::path(value);
    std::error_code ignored;
    if (wanted.is_absolute() && !fs::exists(prefix + wanted.string(), ignored)) {
      rank.missing_files[each.variable] = wanted.string();
    } else if (value.starts_with('~')) {
      rank.missing_files[each.variable] = value;  // only shells know what it means
    }
  }
}

}  // namespace ddp::tools::doctor
