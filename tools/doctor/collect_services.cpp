// What of the machine's services touches ranks: systemd's removal of shared memory, gateways, the port of NCCL's RAS.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <string_view>

#include "base/library_search.hpp"
#include "doctor/collect.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kFirstUser = 1000;  // SYS_UID_MAX of Debian, RHEL and SUSE is 999; logind spares system users
constexpr int kRasPort = 28028;        // NCCL's ras/ras_internal.h
constexpr std::string_view kListens = "0A";

/// logind.conf(5): the main file, then pieces by their names; of equal names the first folder's counts.
std::vector<fs::path> logind_files(const fs::path& root) {
  std::map<std::string, fs::path> pieces;
  for (const char* folder : {"etc", "run", "usr/local/lib", "usr/lib"}) {
    const fs::path path = root / folder / "systemd/logind.conf.d";
    for (const std::string& name : topology::names_in(path)) {
      if (name.ends_with(".conf")) pieces.emplace(name, path / name);
    }
  }
  const fs::path own = root / "etc/systemd/logind.conf";
  std::vector<fs::path> files{topology::has_entry(own) ? own : root / "usr/lib/systemd/logind.conf"};
  for (const auto& [name, path] : pieces) files.push_back(path);
  return files;
}

bool removes_ipc(const fs::path& root, unsigned user) {
  // It knows users who have a session now: when the last one ends, their files go, those of running jobs as well.
  if (user < kFirstUser || !topology::has_entry(root / "run/systemd/users" / std::to_string(user))) return false;
  std::string value = "yes";  // its default
  for (const fs::path& file : logind_files(root)) {
    if (const auto set = topology::read_field(file, "RemoveIPC", '=')) value = *set;
  }
  return value != "no" && value != "false" && value != "0" && value != "off";
}

std::vector<std::string> words_in_line(const std::string& line) { return base::words_of(line, " \t"); }

/// Interfaces of "Iface Destination Gateway Flags ...", with a gateway.
std::vector<std::string> find_gateways(const fs::path& route) {
  std::vector<std::string> found;
  std::ifstream file(route);
  for (std::string line; std::getline(file, line);) {
    const auto words = words_in_line(line);
    if (words.size() < 3 || words[0] == "Iface" || words[2] == "00000000") continue;
    if (std::find(found.begin(), found.end(), words[0]) == found.end()) found.push_back(words[0]);
  }
  return found;
}

int ras_port(const base::Environment& environment) {
  const std::string address = environment.raw("NCCL_RAS_ADDR").value_or("");
  const auto colon = address.rfind(':');
  int port = 0;
  if (colon != std::string::npos) std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  return port > 0 && port < 65536 ? port : kRasPort;
}

/// Whether a line of /proc/net/tcp is another user's socket that listens at the port.
bool is_foreign(const std::vector<std::string>& words, int port, unsigned user) {
  constexpr std::size_t kLocal = 1;
  constexpr std::size_t kState = 3;
  constexpr std::size_t kUser = 7;
  if (words.size() <= kUser || words[kState] != kListens) return false;
  const std::string& local = words[kLocal];  // "0100007F:6D7C"
  int own = 0;
  std::from_chars(local.data() + local.find(':') + 1, local.data() + local.size(), own, 16);
  return own == port && words[kUser] != std::to_string(user);
}

}  // namespace

void collect_services(NodeFacts& node, const fs::path& root, const base::Environment& environment, unsigned user) {
  node.numa = topology::has_entry(root / "sys/devices/system/node/node0");
  node.removes_ipc = removes_ipc(root, user);
  node.gateways = find_gateways(root / "proc/net/route");
  const int port = ras_port(environment);
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream file(root / "proc/net" / table);
    for (std::string line; std::getline(file, line);) {
      if (is_foreign(words_in_line(line), port, user)) node.foreign_ras_port = port;
    }
  }
}

}  // namespace ddp::tools::doctor
