#include "reducer/hooks/parameter_memory.hpp"

namespace ddp::hooks {

/// Whether they lie one after the other already.
bool ParameterMemory::in_place(std::span<const Entry> entries, Device device) const {
  const float* next = nullptr;
  const void* memory = nullptr;
  for (const Entry& entry : entries) {
    const auto found = kept_.find(entry.parameter);
    if (found == kept_.end()) return false;
    const Kept& kept = found->second;
    if (kept.count != entry.count || kept.device != device) return false;
    if (next != nullptr && (kept.place != next || kept.memory.get() != memory)) return false;
    memory = kept.memory.get();
    next = kept.place + kept.count;
  }
  return true;
}

ParameterMemory::Places ParameterMemory::take(const GradientBucket& bucket, std::span<const Entry> entries) {
  Places places;
  std::size_t total = 0;
  for (const Entry& entry : entries) total += entry.count;
  if (total == 0) {
    places.now.resize(entries.size());
    places.kept.resize(entries.size());
    return places;
  }
  const Device device = bucket.buffer.device();
  const bool stays = in_place(entries, device);
  places.memory = stays ? kept_.at(entries.front().parameter).memory : bucket.allocate(total * sizeof(float));
  float* place = stays ? kept_.at(entries.front().parameter).place : static_cast<float*>(places.memory.get());
  for (const Entry& entry : entries) {
    Kept& kept = kept_[entry.parameter];
    const bool usable = kept.memory && kept.count == entry.count && kept.device == device;
    places.now.push_back(place);
    places.kept.push_back(usable ? kept.place : nullptr);
    if (!stays) {
      if (kept.memory) places.former.push_back(std::move(kept.memory));
      kept = {.memory = places.memory, .place = place, .count = entry.count, .device = device};
    }
    place += entry.count;
  }
  return places;
}

}  // namespace ddp::hooks
