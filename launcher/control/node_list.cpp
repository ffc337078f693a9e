// The nodes of a job on the wire. They may be thousands that differ by little, and each gets the whole list: layouts
// that nodes share go once, and of a host's name what the one before does not have.
#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "base/message.hpp"
#include "control/message_fields.hpp"
#include "control/messages.hpp"

namespace ddp::launcher::control {
namespace {

// A list of so many is refused: a few bytes may stand for many nodes.
constexpr std::size_t kMostNodes = 65'536;
// Of their layouts in memory: so many nodes with the longest texts take 77 MiB.
constexpr std::size_t kMostLayoutBytes = std::size_t{128} << 20U;
// Of numbers in names, which fit in 63 bits then.
constexpr std::size_t kMostDigits = 18;
constexpr base::message::Place kHost{.owner = "NodeLayout", .field = "host", .rule = base::kPlainName};

/// Consecutive nodes with the same layout but for the host.
using Run = std::pair<std::uint32_t, std::uint32_t>;  // how many, and the layout's place in the list of layouts

/// 7 bits a byte, the lowest first; the last byte is below 128.
void write_small(base::ByteWriter& out, std::size_t number) {
  for (; number >= 128; number >>= 7U) out.integer(static_cast<std::uint8_t>(number | 128U));
  out.integer(static_cast<std::uint8_t>(number));
}

std::size_t read_small(base::ByteReader& in) {
  std::size_t number = 0;
  for (unsigned shift = 0; shift < 35; shift += 7) {
    const std::size_t byte = in.integer<std::uint8_t>();
    number |= (byte & 127U) << shift;
    if (byte < 128) return number;
  }
  in.refuse("a number in the list of nodes has no end");
}

/// The name without the decimal number at its end, which may be empty.
std::string_view without_number(std::string_view name) {
  std::size_t digits = 0;
  while (digits < std::min(name.size(), kMostDigits) && name[name.size() - 1 - digits] >= '0' &&
         name[name.size() - 1 - digits] <= '9')
    ++digits;
  return name.substr(0, name.size() - digits);
}

/// "n7" after "n6", "n10" after "n9", "n08" after "n07"; empty: the name has no number.
std::string name_after(const std::string& name) {
  const std::string_view prefix = without_number(name);
  const std::string_view digits = std::string_view{name}.substr(prefix.size());
  if (digits.empty()) return {};
  std::uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return fmt::format("{}{:0{}}", prefix, number + 1, digits.size());
}

/// Of each range of names that follow each other: what it shares with the name before it, the rest of its first name,
/// how many there are.
void write_hosts(base::ByteWriter& out, const std::vector<NodeLayout>& nodes) {
  std::string before;
  for (auto first = nodes.begin(); first != nodes.end();) {
    auto last = first;
    while (std::next(last) != nodes.end()) {
      const std::string next = name_after(last->host);
      if (next.empty() || std::next(last)->host != next) break;
      ++last;
    }
    const std::string_view name = first->host;
    const auto shared = static_cast<std::size_t>(
        std::distance(name.begin(), std::ranges::mismatch(name, std::string_view{before}).in1));
    write_small(out, shared);
    write_small(out, name.size() - shared);
    out.raw(std::as_bytes(std::span{name.substr(shared)}));
    write_small(out, static_cast<std::size_t>(std::distance(first, last)) + 1);
    before = last->host;
    first = std::next(last);
  }
}

void read_hosts(base::ByteReader& in, std::vector<NodeLayout>& nodes) {
  std::string name;
  for (std::size_t node = 0; node < nodes.size();) {
    const std::size_t shared = read_small(in);
    if (shared > name.size()) in.refuse("a host's name continues one that is too short");
    const auto rest = in.raw(read_small(in));
    name.resize(shared);
    name.append(reinterpret_cast<const char*>(rest.data()), rest.size());
    std::size_t count = read_small(in);
    if (count == 0 || count > nodes.size() - node) in.refuse("there are more or fewer hosts than nodes");
    for (;; name = name_after(name)) {
      base::message::check_text(in, kHost, name);
      nodes[node++].host = name;
      if (--count == 0) break;
      if (without_number(name).size() == name.size()) in.refuse("a host's name without a number begins a range");
    }
  }
}

std::size_t bytes_of(const NodeLayout& layout) {
  std::size_t bytes = sizeof layout + layout.host.size() + layout.role.size() + layout.socket_interface.size() +
                      layout.socket_reason.size();
  for (const std::string& address : layout.addresses) bytes += sizeof address + address.size();
  return bytes;
}

}  // namespace

void write_value(base::ByteWriter& out, const NodeList& nodes) {
  std::vector<NodeLayout> layouts;
  std::vector<Run> runs;
  for (const NodeLayout& node : nodes) {
    NodeLayout layout = node;
    layout.host.clear();
    const bool same = !runs.empty() && layouts[runs.back().second] == layout;
    const auto known = same ? layouts.begin() + runs.back().second : std::find(layouts.begin(), layouts.end(), layout);
    const auto place = static_cast<std::uint32_t>(std::distance(layouts.begin(), known));
    if (known == layouts.end()) layouts.push_back(std::move(layout));
    if (!runs.empty() && runs.back().second == place) {
      ++runs.back().first;
    } else {
      runs.emplace_back(1, place);
    }
  }
  base::message::write(out, base::kAny, layouts);
  base::message::write(out, base::kAny, runs);
  write_hosts(out, nodes);
}

void read_value(base::ByteReader& in, NodeList& nodes) {
  constexpr base::message::Place kPlace{.owner = "PrepareAttempt", .field = "nodes", .rule = base::kAny};
  std::vector<NodeLayout> layouts;
  std::vector<Run> runs;
  base::message::read(in, kPlace, layouts);
  base::message::read(in, kPlace, runs);
  nodes.clear();
  std::size_t left = kMostLayoutBytes;
  for (const auto& [count, layout] : runs) {
    if (count == 0 || count > kMostNodes - nodes.size() || layout >= layouts.size())
      in.refuse(fmt::format("the list of nodes has a run of {} nodes, of layout {} of {}; the most are {} nodes", count,
                            layout, layouts.size(), kMostNodes));
    const std::size_t bytes = bytes_of(layouts[layout]);
    if (count > left / bytes)
      in.refuse(fmt::format("the layouts of the list of nodes take more than {} MiB", kMostLayoutBytes >> 20U));
    left -= count * bytes;
    nodes.insert(nodes.end(), count, layouts[layout]);
  }
  read_hosts(in, nodes);
}

std::shared_ptr<const Bytes> encode_nodes(const NodeList& nodes) {
  base::ByteWriter out;
  write_value(out, nodes);
  return std::make_shared<const Bytes>(std::move(out).bytes());
}

Encoded encode_once(const PrepareAttempt& plan, std::shared_ptr<const Bytes> nodes) {
  Bytes begin = encode(plan);
  begin.resize(begin.size() - encode_nodes(plan.nodes)->size());  // the last field
  return {.bytes = std::make_shared<const Bytes>(std::move(begin)), .rest = std::move(nodes)};
}

}  // namespace ddp::launcher::control
