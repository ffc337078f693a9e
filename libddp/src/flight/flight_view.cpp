#include "flight/flight_view.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace ddp::flight {
namespace {

constexpr std::uint64_t kMostRecords = 100'000;
constexpr std::uint64_t kMostPlaces = 4096;
constexpr int kLargestGroup = 65'536;
// Over all groups of a process, and over its calls: damaged memory takes no more than this from its reader.
constexpr std::size_t kMostMembersInAll = std::size_t{1} << 18U;
constexpr std::size_t kMostUnfinished = 4096;

/// Reads once, since another process may change it at any time.
template <class T>
T once(const T& value) {
  return *const_cast<const volatile T*>(&value);
}

std::string printable(std::string_view text) {
  std::string clean{text.substr(0, text.find('\0'))};
  std::replace_if(
      clean.begin(), clean.end(), [](unsigned char letter) { return letter < ' ' || letter == 0x7f; }, '?');
  return clean;
}

template <std::size_t size>
std::string text_of(const std::array<char, size>& letters) {
  const std::array<char, size> copy = letters;  // may change meanwhile
  return printable({copy.data(), copy.size()});
}

std::vector<int> members_of(const GroupPlace& place, int size, int listed, std::size_t most) {
  std::vector<int> members;
  if (size <= 0 || size > kLargestGroup || static_cast<std::size_t>(size) > most || listed <= 0) return members;
  if (listed == size && static_cast<std::size_t>(listed) <= GroupPlace::kMostMembers) {
    members.assign(place.members.begin(), place.members.begin() + listed);
  } else if (listed == 2) {
    const std::int64_t first = once(place.members[0]);
    const std::int64_t distance = once(place.members[1]);
    const std::int64_t last = first + distance * (size - 1);
    if (last < 0 || last > INT32_MAX) return members;
    for (int i = 0; i < size; ++i) members.push_back(static_cast<int>(first + distance * i));
  }
  if (std::any_of(members.begin(), members.end(), [](int rank) { return rank < 0; })) members.clear();
  return members;
}

struct NamedGroup {
  std::uint32_t id;
  FlightView::Group group;
};

std::optional<NamedGroup> read_place(const GroupPlace& place, std::size_t most_members) {
  const std::uint32_t id = place.id.load(std::memory_order_acquire);
  if (id == 0) return std::nullopt;
  const int size = once(place.size);
  NamedGroup found{.id = id,
                   .group = {.name = text_of(place.name),
                             .backend = text_of(place.backend),
                             .rank = once(place.rank),
                             .size = size,
                             .members = members_of(place, size, once(place.listed), most_members),
                             .last_queued = place.last_queued.load(std::memory_order_relaxed)}};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (place.id.load(std::memory_order_relaxed) != id) return std::nullopt;
  return found;
}

FlightView::Call call_of(const FlightRing::Entry& entry, const FlightHeader& header,
                         const std::vector<NamedGroup>& groups, const FlightClock::Reader& time) {
  const FlightFields& fields = entry.fields;
  const auto group =
      std::find_if(groups.begin(), groups.end(), [&](const NamedGroup& each) { return each.id == fields.group; });
  const bool known = fields.kind < FlightHeader::kKinds;
  const std::string name = known ? text_of(header.kinds[fields.kind]) : std::string{};
  return {.group = group == groups.end() ? std::string{"?"} : group->group.name,
          .operation = name.empty() ? std::string{"operation"} : name,
          .sequence = fields.sequence,
          .count = fields.count,
          .transfer = known && (header.transfers.load(std::memory_order_relaxed) >> fields.kind & 1U) != 0,
          .peer = fields.root,
          .state = entry.state,
          .age_s = time.seconds_since(fields.queued),
          .end_s = fields.finished == 0 ? 0 : time.seconds_since(fields.finished),
          .label = printable({fields.label.data(), std::min<std::size_t>(fields.label_size, fields.label.size())})};
}

FlightView::Sums sums_of(const FlightSums& sums, const FlightClock::Reader& time) {
  const auto number = [](const std::atomic<std::uint64_t>& value) { return value.load(std::memory_order_relaxed); };
  const auto seconds = [&](const std::atomic<std::uint64_t>& value) {
    return static_cast<double>(number(value)) / 1e9;
  };
  const std::uint64_t steps = sums.steps.load(std::memory_order_acquire);  // read first: the others include it
  const std::uint32_t straggler = sums.straggler_rank_and_1.load(std::memory_order_relaxed);
  return {.operation_bytes = number(sums.operation_bytes),
          .steps = steps,
          .step_s = seconds(sums.step_ns),
          .communication_s = seconds(sums.communication_ns),
          .hidden_s = seconds(sums.hidden_ns),
          .last_step_s = seconds(sums.last_step_ns),
          .last_step_age_s = steps == 0 ? 0 : time.seconds_since(number(sums.last_step_ticks)),
          .straggler_rank = straggler == 0 || straggler > INT32_MAX ? -1 : static_cast<int>(straggler - 1),
          .straggler_delay_s = seconds(sums.straggler_delay_ns)};
}

}  // namespace

std::string describe_group(const std::string& name) {
  // "torch.ID.0123abcd", as bindings/python/libddp/_backend.py makes them; torch's own name of its first group is "0".
  constexpr std::string_view kTorchs = "torch.";
  const auto end = name.rfind('.');
  if (!name.starts_with(kTorchs) || end <= kTorchs.size() || end + 9 != name.size())
    return fmt::format("group '{}'", name);
  const std::string id = name.substr(kTorchs.size(), end - kTorchs.size());
  return id == "0" ? "torch's default group" : fmt::format("torch's group '{}'", id);
}

std::string describe(const FlightView::Call& call) {
  const std::string group = describe_group(call.group);
  if (!call.transfer) return fmt::format("{} #{} of {}", call.operation, call.sequence, group);
  return fmt::format("{} {} member {} of {}", call.operation, call.operation == "recv" ? "from" : "to", call.peer,
                     group);
}

std::optional<FlightView> read_flight_memory(std::span<const std::byte> memory) {
  if (memory.size() < sizeof(FlightHeader)) return std::nullopt;
  const auto& header = *reinterpret_cast<const FlightHeader*>(memory.data());
  if (header.magic != FlightHeader::kMagic) return std::nullopt;
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t places = once(header.group_count);
  const std::uint64_t places_at = once(header.groups_offset);
  const std::uint64_t ring_size = once(header.ring_size);
  const std::uint64_t ring_at = once(header.ring_offset);
  if (once(header.group_bytes) != sizeof(GroupPlace) || once(header.slot_bytes) != FlightRing::kSlotBytes ||
      places > kMostPlaces || ring_size > kMostRecords || places_at % 64 != 0 || ring_at % 64 != 0)
    return std::nullopt;
  const auto fits = [&](std::uint64_t at, std::uint64_t bytes) {
    return at <= memory.size() && bytes <= memory.size() - at;
  };
  if (!fits(places_at, places * sizeof(GroupPlace)) || !fits(ring_at, FlightRing::bytes(ring_size)))
    return std::nullopt;

  std::vector<NamedGroup> groups;
  const auto* const place = reinterpret_cast<const GroupPlace*>(memory.data() + places_at);
  std::size_t members_left = kMostMembersInAll;
  for (std::uint64_t i = 0; i < places; ++i) {
    auto group = read_place(place[i], members_left);
    if (!group) continue;
    members_left -= group->group.members.size();
    groups.push_back(std::move(*group));
  }
  const FlightRing ring{ring_size, const_cast<std::byte*>(memory.data() + ring_at)};
  const FlightRing::Content content = ring.read_open();
  const FlightClock clock{{.counter = once(header.counter) != 0,
                           .ticks = once(header.first_ticks),
                           .steady_ns = once(header.first_steady_ns)}};
  const FlightClock::Reader time{clock};

  FlightView view;
  view.pid = once(header.pid);
  view.rank = header.rank.load(std::memory_order_relaxed);
  view.world_size = header.world_size.load(std::memory_order_relaxed);
  const std::uint32_t phase = header.phase.load(std::memory_order_acquire);
  if (phase <= static_cast<std::uint32_t>(FlightPhase::left)) view.phase = static_cast<FlightPhase>(phase);
  view.phase_s = time.seconds_since(header.phase_ticks.load(std::memory_order_relaxed));
  if (once(header.adds_up) != 0) view.sums = sums_of(header.sums, time);
  view.recorded = content.added;
  view.finished = content.finished;
  for (const FlightRing::Entry& entry : content.entries) {
    const bool ended = entry.state == FlightState::done || entry.state == FlightState::failed;
    const bool is_last = &entry == &content.entries.back();
    if (!is_last && (ended || view.unfinished.size() >= kMostUnfinished)) continue;
    FlightView::Call call = call_of(entry, header, groups, time);
    if (!ended && view.unfinished.size() < kMostUnfinished) view.unfinished.push_back(call);
    if (is_last) view.last = std::move(call);
  }
  for (NamedGroup& group : groups) view.groups.push_back(std::move(group.group));
  return view;
}

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLargestMemory = std::uint64_t{64} << 20U;

/// The process' number in its own namespace.
int own_pid(const std::string& proc, pid_t pid) {
  std::ifstream status(fmt::format("{}/{}/status", proc, pid));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("NSpid:")) continue;
    const std::size_t last = line.find_last_of("\t ");
    return std::atoi(line.c_str() + last + 1);
  }
  return pid;
}

}  // namespace

std::optional<FlightWindow> FlightWindow::open_file(std::string path) {
  const base::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!file) return std::nullopt;
  // Accept only memory that cannot shrink while it is read, which would end in SIGBUS.
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  struct stat facts {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(file.get(), &facts) != 0) return std::nullopt;
  if (facts.st_size <= 0 || static_cast<std::uint64_t>(facts.st_size) > kLargestMemory) return std::nullopt;
  const auto size = static_cast<std::size_t>(facts.st_size);
  const void* const pages = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (pages == MAP_FAILED) return std::nullopt;
  return FlightWindow{std::move(path), {static_cast<const std::byte*>(pages), size}, facts.st_dev, facts.st_ino};
}

std::optional<FlightWindow> FlightWindow::open(const std::string& proc, pid_t pid) {
  const fs::path folder = fmt::format("{}/{}/fd", proc, pid);
  const std::string wanted = fmt::format("/memfd:{}", kMemoryName);
  std::optional<FlightWindow> best;
  std::uint64_t most = 0;
  std::error_code status;
  for (fs::directory_iterator entry{folder, status}, end; !status && entry != end; entry.increment(status)) {
    std::error_code ignored;
    if (!fs::read_symlink(entry->path(), ignored).native().starts_with(wanted)) continue;
    auto window = open_file(entry->path());
    if (!window) continue;
    const auto view = read_flight_memory(window->pages_);
    if (!view || view->pid != own_pid(proc, pid)) continue;  // inherited by a child
    if (best && view->recorded <= most) continue;
    most = view->recorded;
    best = std::move(window);
  }
  return best;
}

FlightWindow::FlightWindow(FlightWindow&& other) noexcept
    : path_(std::move(other.path_)),
      pages_(std::exchange(other.pages_, {})),
      device_(other.device_),
      inode_(other.inode_) {}

FlightWindow& FlightWindow::operator=(FlightWindow&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(pages_, other.pages_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

FlightWindow::~FlightWindow() {
  if (!pages_.empty()) ::munmap(const_cast<std::byte*>(pages_.data()), pages_.size());
}

std::optional<FlightView> FlightWindow::view() const {
  struct stat facts {};
  if (::stat(path_.c_str(), &facts) != 0 || facts.st_dev != device_ || facts.st_ino != inode_) return std::nullopt;
  return read_flight_memory(pages_);
}

std::optional<FlightView> view_flight(const std::string& proc, pid_t pid) {
  const auto window = FlightWindow::open(proc, pid);
  return window ? window->view() : std::nullopt;
}

}  // namespace ddp::flight
