// What a process has in use: TCP connections and mapped memory.
#pragma once

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace ddp::bench {

struct Traffic {
  double connections = 0;
  double sent_bytes = 0;
};

/// Established TCP connections of this process, and what their peers have acknowledged.
inline Traffic traffic() {
  constexpr int kEstablished = 1;  // include/net/tcp_states.h
  Traffic sum;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* const entry = readdir(folder)) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(std::atoi(entry->d_name), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    if (info.tcpi_state != kEstablished) continue;
    ++sum.connections;
    sum.sent_bytes += static_cast<double>(info.tcpi_bytes_acked);
  }
  closedir(folder);
  return sum;
}

/// KiB of one field, like "Pss:", of /proc/self/@p file_name: of all mappings whose name contains one of @p names, or
/// of the process where there are none.
inline double mapped_kib(const std::string& file_name, const std::string& field,
                         const std::vector<std::string>& names = {}) {
  std::ifstream file("/proc/self/" + file_name);
  bool counts = names.empty();
  double sum = 0;
  for (std::string line; std::getline(file, line);) {
    const bool header = line.find('-') < line.find(' ');  // address range, permissions, offset, device, inode, name
    if (header && !names.empty()) {
      counts = std::ranges::any_of(names, [&](const auto& name) { return line.find(name) != std::string::npos; });
    } else if (counts && line.starts_with(field)) {
      sum += std::stod(line.substr(field.size()));
    }
  }
  return sum;
}

}  // namespace ddp::bench
