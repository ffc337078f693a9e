// What a rank costs: rank 0 prints a line of JSON with the start's times and, after every kind of operation,
// connections, shared memory and resident memory of the ranks.
#include <dirent.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <ddp/ddp.hpp>

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kSmall = 16;                           // elements
constexpr std::size_t kLarge = (1U << 20U) / sizeof(float);  // 1 MiB, in which backends use their buffers
constexpr auto kPatience = std::chrono::seconds(600);

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Inodes of this process's sockets.
std::set<std::string> own_sockets() {
  std::set<std::string> inodes;
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return inodes;
  while (const dirent* entry = readdir(folder)) {
    std::array<char, 64> target{};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    const auto length = readlink(path.c_str(), target.data(), target.size() - 1);
    const std::string name(target.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
    if (name.starts_with("socket:[")) inodes.insert(name.substr(8, name.size() - 9));
  }
  closedir(folder);
  return inodes;
}

/// Established TCP connections of this process.
double connections() {
  const auto own = own_sockets();
  double count = 0;
  for (const char* path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);  // the header
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::array<std::string, 10> word;  // sl local remote st queues timer retransmit uid timeout inode
      for (auto& each : word) words >> each;
      if (word[3] == "01" && own.contains(word[9])) ++count;
    }
  }
  return count;
}

/// KiB of one field of all mappings whose name contains one of @p names, or of the process where there are none.
double mapped_kib(const char* file_name, const std::string& field, const std::vector<std::string>& names) {
  std::ifstream file(file_name);
  std::string line;
  bool counts = names.empty();
  double sum = 0;
  while (std::getline(file, line)) {
    const bool header = line.find('-') < line.find(' ');  // address range, permissions, offset, device, inode, name
    if (header && !names.empty()) {
      counts = false;
      for (const auto& name : names) counts = counts || line.find(name) != std::string::npos;
    } else if (counts && line.starts_with(field)) {
      sum += std::stod(line.substr(field.size()));
    }
  }
  return sum;
}

/// Mean and greatest of the ranks' values.
std::string spread_of(ddp::ProcessGroup& group, double value) {
  double sum = value;
  group.all_reduce(std::span{&sum, 1}).wait();
  group.all_reduce(std::span{&value, 1}, ddp::ReduceOp::max).wait();
  return "[" + std::to_string(sum / group.size()) + ", " + std::to_string(value) + "]";
}

void use_everything(ddp::ProcessGroup& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  for (const std::size_t count : {kSmall, kLarge}) {
    const std::size_t part = std::max(count / ranks, std::size_t{1});
    std::vector<float> whole(part * ranks);
    std::vector<float> other(part * ranks);
    const std::span<float> one(other.data(), part);
    group.all_reduce(whole).wait();
    group.broadcast(whole, 0).wait();
    group.all_gather(one, whole).wait();
    group.reduce_scatter(whole, one).wait();
    group.all_to_all(whole, other).wait();
  }
  group.barrier().wait();
}

void run() {
  auto start = Clock::now();
  ddp::World world = ddp::World::init();
  const double init_ms = milliseconds_since(start);
  start = Clock::now();
  ddp::ProcessGroup group = ddp::make_process_group(world);
  const double group_ms = milliseconds_since(start);
  double one = 1;
  group.all_reduce(std::span{&one, 1}).wait();
  const double first_ms = milliseconds_since(start);
  start = Clock::now();
  group.all_reduce(std::span{&one, 1}).wait();
  const double second_ms = milliseconds_since(start);
  const double early_connections = connections();
  use_everything(group);

  const std::vector<std::string> shared{"memfd:", "/dev/shm/"};
  const std::vector<std::pair<std::string, double>> values{
      {"init_ms", init_ms},
      {"group_ms", group_ms},
      {"first_ms", first_ms},
      {"second_ms", second_ms},
      {"connections_after_first", early_connections},
      {"connections", connections()},
      {"shared_mapped_kib", mapped_kib("/proc/self/smaps", "Size:", shared)},
      {"shared_own_kib", mapped_kib("/proc/self/smaps", "Pss:", shared)},
      {"resident_kib", mapped_kib("/proc/self/status", "VmRSS:", {})},
      {"own_kib", mapped_kib("/proc/self/smaps_rollup", "Pss:", {})},
  };
  std::string line =
      "{\"ranks\": " + std::to_string(group.size()) + ", \"nodes\": " + std::to_string(world.num_nodes());
  for (const auto& [name, value] : values) line += ", \"" + name + "\": " + spread_of(group, value);
  group.barrier(ddp::Deadline::after(kPatience)).wait();
  if (group.rank() == 0) std::printf("%s}\n", line.c_str());
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "growth: %s\n", error.what());
    return 1;
  }
  return 0;
}
