#include "launch/host_failures.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::launcher {
namespace {

constexpr std::size_t kMostNames = 16;
constexpr char kAnyHost = '\1';

/// The same for hosts that failed in the same way.
std::string kind_of(const HostFailure& failure) {
  std::string kind = failure.cause;
  for (auto at = kind.find(failure.host); at != std::string::npos; at = kind.find(failure.host, at + 1))
    kind.replace(at, failure.host.size(), 1, kAnyHost);
  return kind;
}

}  // namespace

std::string describe(std::span<const HostFailure> failures) {
  struct Group {
    std::string kind;
    const HostFailure* first;
    std::vector<std::string> hosts{};
  };
  std::vector<Group> groups;
  for (const HostFailure& failure : failures) {
    const std::string kind = kind_of(failure);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& each) { return each.kind == kind; });
    if (group == groups.end()) group = groups.insert(groups.end(), {.kind = kind, .first = &failure});
    group->hosts.push_back(failure.host);
  }
  std::string text = "starting ddprun ";
  for (const Group& group : groups) {
    const std::span<const std::string> names = std::span(group.hosts).first(std::min(kMostNames, group.hosts.size()));
    text += fmt::format("{}on {}", &group == groups.data() ? "" : "; ", fmt::join(names, ", "));
    if (names.size() < group.hosts.size()) text += fmt::format(" and {} more", group.hosts.size() - names.size());
    text += fmt::format(": {}{}{}", group.first->cause, group.first->hint.empty() ? "" : "; ", group.first->hint);
  }
  return text;
}

}  // namespace ddp::launcher
