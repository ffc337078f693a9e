#include "collectives/flight/flight_recorder.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"

namespace ddp {
namespace {

thread_local const FlightLabel* current_label = nullptr;

}  // namespace

FlightLabel::FlightLabel(std::string_view text) noexcept : size_(text.size()), outer_(current_label) {
  if (size_ > kMaxBytes) {
    size_ = kMaxBytes;
    while (size_ > 0 && (static_cast<unsigned char>(text[size_]) & 0xC0U) == 0x80U) --size_;  // no half character
  }
  std::copy_n(text.data(), size_, bytes_.data());
  current_label = this;
}

FlightLabel::~FlightLabel() { current_label = outer_; }

namespace collectives {
namespace {

static_assert(FlightLabel::kMaxBytes == FlightFields::kLabelBytes);

// A record takes 128 bytes, its part of a dump some 700.
constexpr int kLargestSize = 100'000;

std::size_t size_from_environment() {
  const base::Environment environment = base::Environment::process();
  const std::string text = environment.text("DDP_FLIGHT_SIZE");
  int size = 0;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, size);
  if (status == std::errc{} && end == last && size >= 0 && size <= kLargestSize) return static_cast<std::size_t>(size);
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "reading the environment variable DDP_FLIGHT_SIZE",
               .cause = fmt::format("'{}' is not a number of operations from 0 to {}", text, kLargestSize),
               .native = {},
               .ranks = {},
               .hint = "correct or unset DDP_FLIGHT_SIZE"}};
}

}  // namespace

FlightGroup::FlightGroup(FlightRecorder& recorder, std::uint32_t id, FlightGroupFacts facts)
    : recorder_(recorder), id_(id), facts_(std::move(facts)) {}

FlightGroup::Slot FlightGroup::record(const Operation& operation) noexcept {
  if (recorder_.ring_.size() == 0) return 0;
  FlightFields fields;
  if (operation.is_transfer()) {
    fields.sequence = transfers_.fetch_add(1, std::memory_order_relaxed) + 1;
  } else {
    fields.sequence = operation.sequence;
    last_queued_.store(operation.sequence, std::memory_order_relaxed);
  }
  fields.count = operation.count;
  fields.inputs = operation.input.numel();
  fields.outputs = operation.output.numel();
  // Takes longer than all the rest; without parts it can be made of the other fields later.
  if (!operation.counts.empty()) fields.fingerprint = operation.fingerprint();
  fields.group = id_;
  fields.root = operation.root;
  fields.tag = operation.tag;
  fields.kind = static_cast<std::uint8_t>(operation.kind);
  fields.dtype = static_cast<std::uint8_t>(operation.dtype);
  fields.reduce_op = static_cast<std::uint8_t>(operation.reduce_op);
  if (current_label != nullptr) {
    const std::string_view text = current_label->text();
    fields.label_size = static_cast<std::uint8_t>(text.size());
    std::memcpy(fields.label.data(), text.data(), text.size());
  }
  fields.queued = recorder_.clock_.ticks();
  const Slot number = recorder_.ring_.add(fields);
  if (number != 0) last_number_.store(number, std::memory_order_relaxed);
  return number;
}

void FlightGroup::started(Slot slot) noexcept {
  if (slot != 0) recorder_.ring_.start(slot, recorder_.clock_.ticks());
}

void FlightGroup::finished(Slot slot, bool ok) noexcept {
  if (slot != 0) recorder_.ring_.finish(slot, recorder_.clock_.ticks(), ok);
}

FlightRecorder::FlightRecorder(std::size_t size) : begun_(clock_.ticks()), ring_(size) {}

FlightRecorder& FlightRecorder::process() {
  // Leaked: threads of the library may record until the very end.
  static FlightRecorder& recorder = *new FlightRecorder(size_from_environment());
  return recorder;
}

std::shared_ptr<FlightGroup> FlightRecorder::join(FlightGroupFacts facts) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t added = ring_.added();
  std::erase_if(groups_, [&](const std::shared_ptr<FlightGroup>& group) {
    const bool closed = group.use_count() == 1;
    return closed && group->last_number_.load(std::memory_order_relaxed) + ring_.size() < added;
  });
  rank_ = facts.global_ranks.at(static_cast<std::size_t>(facts.rank));
  groups_.push_back(std::make_shared<FlightGroup>(*this, ++last_id_, std::move(facts)));
  return groups_.back();
}

FlightSnapshot FlightRecorder::snapshot() const {
  FlightSnapshot snapshot;
  FlightRing::Content content;
  {
    const std::lock_guard lock(mutex_);  // so that no group of a record is forgotten
    snapshot.rank = rank_;
    content = ring_.read();
    for (const auto& group : groups_) {
      snapshot.groups.push_back(group);
      snapshot.last_queued.push_back(group->last_queued());
    }
  }
  const FlightClock::Reader time(clock_);
  snapshot.begun_ns = time.wall_ns(begun_);
  snapshot.taken_ns = time.now();
  snapshot.size = ring_.size();
  snapshot.recorded = content.added;
  snapshot.unreadable = content.unreadable;
  for (const FlightRing::Entry& entry : content.entries) {
    const auto has = [&](const auto& group) { return group->id() == entry.fields.group; };
    if (std::none_of(snapshot.groups.begin(), snapshot.groups.end(), has)) continue;  // younger than the list
    snapshot.records.push_back({.number = entry.number,
                                .state = entry.state,
                                .fields = entry.fields,
                                .queued_ns = time.wall_ns(entry.fields.queued),
                                .started_ns = time.wall_ns(entry.fields.started),
                                .finished_ns = time.wall_ns(entry.fields.finished)});
  }
  return snapshot;
}

}  // namespace collectives
}  // namespace ddp
