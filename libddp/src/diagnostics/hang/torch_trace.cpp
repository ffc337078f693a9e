#include "diagnostics/hang/torch_trace.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "diagnostics/hang/torch_pickle.hpp"

namespace ddp::diagnostics {
namespace {

using flight::FlightState;
using flight::FlightView;
using TraceJson = nlohmann::json;

constexpr std::size_t kMostNameBytes = 64;
constexpr std::size_t kMostUnfinished = 64;
constexpr std::size_t kMostMembers = 1U << 20U;

[[noreturn]] void refuse_trace(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading a dump of PyTorch's flight recorder",
               .cause = std::move(cause)}};
}

std::string printable_name(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return letter < ' ' || letter >= 0x7f; }, '?');
  return text.substr(0, kMostNameBytes);
}

/// Of "[0, 1, 5]".
std::vector<int> parse_ranks(const std::string& text) {
  std::vector<int> ranks;
  for (std::size_t at = text.find_first_of("0123456789"); at != std::string::npos && ranks.size() < kMostMembers;) {
    int rank = 0;
    const auto [end, status] = std::from_chars(text.data() + at, text.data() + text.size(), rank);
    if (status != std::errc{}) refuse_trace("a rank in it is out of range");
    ranks.push_back(rank);
    at = text.find_first_of("0123456789", static_cast<std::size_t>(end - text.data()));
  }
  return ranks;
}

std::vector<int> members_of(const TraceJson& dump, const std::string& name, const std::string& description,
                            int world_size) {
  std::vector<int> members;
  if (const auto config = dump.find("pg_config"); config != dump.end() && config->contains(name))
    members = parse_ranks(config->at(name).at("ranks").get<std::string>());
  if (members.empty() && description == "default_pg") {
    members.resize(std::min(static_cast<std::size_t>(std::max(world_size, 0)), kMostMembers));
    std::iota(members.begin(), members.end(), 0);
  }
  return members;
}

FlightView::Group& group_named(const TraceJson& dump, const TraceJson& entry, const std::string& backend,
                               FlightView& view) {
  const auto name = entry.at("process_group").at(0).get<std::string>();
  const auto description = entry.at("process_group").at(1).get<std::string>();
  std::string shown = printable_name(fmt::format("{}:{}", backend, name));
  if (!description.empty() && description != "undefined") shown += " " + printable_name(description);
  const auto known = std::find_if(view.groups.begin(), view.groups.end(),
                                  [&](const FlightView::Group& each) { return each.name == shown; });
  if (known != view.groups.end()) return *known;
  FlightView::Group& group = view.groups.emplace_back();
  group.name = std::move(shown);
  group.backend = backend;
  group.members = members_of(dump, name, description, view.world_size);
  group.size = static_cast<int>(group.members.size());
  const auto own = std::find(group.members.begin(), group.members.end(), view.rank);
  if (own != group.members.end()) group.rank = static_cast<int>(own - group.members.begin());
  return group;
}

/// Elements, of operations in which they are the same on all ranks.
std::uint64_t count_of(const std::string& operation, const TraceJson& entry) {
  if (operation != "all_reduce" && operation != "broadcast" && operation != "reduce") return 0;
  const TraceJson& inputs = entry.at("input_sizes");
  if (inputs.empty()) return 0;
  std::uint64_t count = 1;
  for (const TraceJson& size : inputs.at(0)) count *= size.get<std::uint64_t>();
  return count;
}

/// Of "send 1->2", "recv 3<-0": the other end.
int peer_in(std::string_view text) {
  int peer = -1;
  for (const std::string_view arrow : {"->", "<-"}) {
    if (const std::size_t at = text.find(arrow); at != std::string_view::npos)
      std::from_chars(text.data() + at + arrow.size(), text.data() + text.size(), peer);
  }
  return peer;
}

double seconds_since(const TraceJson& entry, const char* name, std::int64_t now_ns) {
  const auto time = entry.find(name);
  if (time == entry.end() || !time->is_number_integer()) return -1;
  const auto at_ns = time->get<std::int64_t>();
  return at_ns <= 0 ? -1 : std::max(0.0, (static_cast<double>(now_ns) - static_cast<double>(at_ns)) * 1e-9);
}

void add_entry(const TraceJson& dump, const TraceJson& entry, std::int64_t now_ns, FlightView& view) {
  const auto profiled = entry.at("profiling_name").get<std::string>();  // "gloo:all_reduce", "nccl:send 1->2"
  const std::size_t colon = profiled.find(':');
  const std::string backend = colon == std::string::npos ? "torch" : printable_name(profiled.substr(0, colon));
  const std::string called = colon == std::string::npos ? profiled : profiled.substr(colon + 1);
  FlightView::Group& group = group_named(dump, entry, backend, view);
  FlightView::Call call;
  call.group = group.name;
  call.operation = printable_name(called.substr(0, called.find(' ')));
  call.transfer = entry.at("is_p2p").get<bool>();
  call.sequence = entry.at(call.transfer ? "p2p_seq_id" : "collective_seq_id").get<std::uint64_t>();
  call.peer = call.transfer ? peer_in(called) : -1;
  call.count = count_of(call.operation, entry);
  call.age_s = std::max(0.0, seconds_since(entry, "time_created_ns", now_ns));
  call.end_s = seconds_since(entry, "time_discovered_completed_ns", now_ns);
  // Gloo only retires what has ended. NCCL's watchdog also retires what has timed out.
  const bool retired = entry.at("retired").get<bool>() && backend != "nccl";
  const bool done = retired || entry.at("state").get<std::string>() == "completed";
  call.state = done ? FlightState::done : FlightState::started;
  if (!call.transfer) group.last_queued = std::max(group.last_queued, call.sequence);
  ++view.recorded;
  if (done) ++view.finished;
  if (!done && view.unfinished.size() < kMostUnfinished) view.unfinished.push_back(call);
  if (!view.last || call.age_s <= view.last->age_s) view.last = std::move(call);
}

}  // namespace

void add_torch_trace(std::string_view dump, std::int64_t now_ns, FlightView& view) {
  try {
    const TraceJson document = dump.starts_with('{') ? TraceJson::parse(dump) : TraceJson::parse(pickle_to_json(dump));
    if (!document.is_object() || !document.at("version").get<std::string>().starts_with("2."))
      refuse_trace("it is of another version than 2");
    if (!document.contains("entries")) return;  // nothing was recorded
    for (const TraceJson& entry : document.at("entries")) add_entry(document, entry, now_ns, view);
    std::stable_sort(view.unfinished.begin(), view.unfinished.end(),
                     [](const FlightView::Call& a, const FlightView::Call& b) { return a.age_s > b.age_s; });
  } catch (const TraceJson::exception& error) {
    refuse_trace(fmt::format("it is not as expected: {}", printable_name(error.what())));
  }
}

}  // namespace ddp::diagnostics
