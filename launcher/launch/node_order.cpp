#include "launch/node_order.hpp"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/network/hostlist.hpp"

namespace ddp::launcher {
namespace {

// The kernel takes no longer argument than 128 KiB.
constexpr std::size_t kMostListBytes = 100'000;

void add_once(std::vector<std::string>& nodes, std::string name) {
  if (std::find(nodes.begin(), nodes.end(), name) == nodes.end()) nodes.push_back(std::move(name));
}

/// As srun reads it: names and lists of names, one or more a line; "n0*4" is four times n0; '#' begins a comment.
std::vector<std::string> listed_nodes(std::istream& file) {
  std::vector<std::string> nodes;
  for (std::string line; std::getline(file, line);) {
    std::string_view rest = std::string_view(line).substr(0, line.find('#'));
    while (!rest.empty()) {
      const auto end = rest.find_first_of(" \t\r");
      const std::string_view word = rest.substr(0, end);
      for (std::string& name : topology::expand_hostlist(std::string(word.substr(0, word.find('*')))))
        add_once(nodes, std::move(name));
      rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    }
  }
  return nodes;
}

}  // namespace

NodeOrder order_of_nodes(const base::Environment& environment) {
  const std::string path = environment.raw("SLURM_HOSTFILE").value_or("");
  const auto allocated = environment.raw("SLURM_JOB_NODELIST");
  if (path.empty() || !allocated || environment.number("SLURM_HET_SIZE").value_or(1) > 1) return {};
  const auto unused = [&](const std::string& why) {
    return NodeOrder{.remark = fmt::format("SLURM_HOSTFILE={} is not used: {}", path, why)};
  };
  std::ifstream file{path};
  if (!file) return unused("it cannot be read");
  try {
    const std::vector<std::string> job = topology::expand_hostlist(*allocated);
    NodeOrder order{.nodes = listed_nodes(file)};
    if (order.nodes.empty()) return {};
    for (const std::string& name : order.nodes) {
      if (std::find(job.begin(), job.end(), name) == job.end())
        return unused(fmt::format("the job does not have {}", name));
    }
    for (const std::string& name : job) add_once(order.nodes, name);
    std::size_t bytes = 0;
    for (const std::string& name : order.nodes) bytes += name.size() + 1;
    return bytes > kMostListBytes ? unused("its list is too long for srun's command line") : order;
  } catch (const Error& error) {
    return unused(error.cause());
  }
}

}  // namespace ddp::launcher
