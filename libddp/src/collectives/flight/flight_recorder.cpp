#include "collectives/flight/flight_recorder.hpp"

#include <algorithm>
#include <cstring>

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

// The last kind of operation.
constexpr auto kLastKind = OperationKind::recv;

}  // namespace

FlightGroup::FlightGroup(FlightRecorder& recorder, std::uint32_t id, FlightGroupFacts facts)
    : recorder_(recorder),
      id_(id),
      facts_(std::move(facts)),
      place_(recorder.memory_->add_group(id, facts_.name, facts_.backend, facts_.rank, facts_.global_ranks)),
      last_queued_(place_ == nullptr ? &own_last_queued_ : &place_->last_queued) {}

FlightGroup::Slot FlightGroup::record(const Operation& operation) noexcept {
  if (recorder_.ring_.size() == 0) return 0;
  FlightFields fields;
  if (operation.is_transfer()) {
    fields.sequence = transfers_.fetch_add(1, std::memory_order_relaxed) + 1;
  } else {
    fields.sequence = operation.sequence;
    std::uint64_t last = last_queued_->load(std::memory_order_relaxed);  // another thread may have recorded a later one
    while (last < operation.sequence &&
           !last_queued_->compare_exchange_weak(last, operation.sequence, std::memory_order_relaxed)) {
    }
  }
  fields.count = operation.count;
  fields.inputs = operation.input.numel();
  fields.outputs = operation.output.numel();
  // Takes longer than all the rest; without parts and prescale it can be made of the other fields later.
  if (!operation.counts.empty() || operation.prescale != 1) fields.fingerprint = operation.fingerprint();
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
  recorder_.memory_->add_bytes(std::max(operation.input.size_bytes(), operation.output.size_bytes()));
  return number;
}

void FlightGroup::started(Slot slot) noexcept {
  if (slot != 0) recorder_.ring_.start(slot, recorder_.clock_.ticks());
}

void FlightGroup::finished(Slot slot, bool ok) noexcept {
  if (slot != 0) recorder_.ring_.finish(slot, recorder_.clock_.ticks(), ok);
}

FlightRecorder::FlightRecorder(std::size_t size)
    : FlightRecorder(std::make_shared<flight::FlightMemory>(size, flight::FlightMemory::Visibility::own)) {}

FlightRecorder::FlightRecorder(std::shared_ptr<flight::FlightMemory> memory)
    : memory_(std::move(memory)), ring_(memory_->ring()), clock_(memory_->clock()), begun_(clock_.ticks()) {
  for (std::uint8_t kind = 0; kind <= static_cast<std::uint8_t>(kLastKind); ++kind) {
    const auto named = static_cast<OperationKind>(kind);
    memory_->name_kind(kind, to_string(named), named == OperationKind::send || named == OperationKind::recv);
  }
}

FlightRecorder& FlightRecorder::process() {
  // Leaked: threads of the library may record until the very end.
  static FlightRecorder& recorder = *new FlightRecorder(
      std::shared_ptr<flight::FlightMemory>(&flight::FlightMemory::process(), [](flight::FlightMemory*) {}));
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
