#include "named/set_state.hpp"

#include <cstring>

namespace ddp::named {

Token::Head Token::head_of(std::size_t rank) const noexcept {
  Head head;
  std::memcpy(&head, all.data() + rank * own.size(), sizeof head);
  return head;
}

LearnedOrder::LearnedOrder(std::vector<std::vector<Key>> batches, std::vector<std::int64_t> eager)
    : batches_(std::move(batches)), eager_(std::move(eager)), held_(batches_.size(), 0) {
  eager_.resize(batches_.size(), 0);
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    for (const Key& key : batches_[i]) {
      if (key.number == 0) {
        places_.emplace(key, i);
      } else {
        Series& series = series_[series_of(key)];
        if (series.places.empty()) series.first = key.number;
        series.places.push_back(i);
      }
      for (const char c : key.name) fingerprint_ = fingerprint_ * 1099511628211U ^ static_cast<unsigned char>(c);
      fingerprint_ = fingerprint_ * 31 + static_cast<std::uint64_t>(key.kind) + 1 + key.number * 64;
    }
    fingerprint_ = fingerprint_ * 31 + 7;
  }
}

bool LearnedOrder::hold(const Key& key) {
  if (key.number > 0) {
    const auto series = series_.find(series_of(key));
    if (series == series_.end() || key.number < series->second.first) return false;
    const auto& [first, places] = series->second;
    const std::size_t batch = places[(key.number - first) % places.size()];
    const std::uint64_t turn = (key.number - first) / places.size();
    if (turn == turns_of(batch)) {
      ++held_[batch];
    } else if (turn > turns_of(batch)) {
      early_.insert(key);
    }
    return turn >= turns_of(batch);
  }
  const auto place = places_.find(key);
  if (place == places_.end()) return false;
  ++held_[place->second];
  return true;
}

Key LearnedOrder::model_of(const Key& key) const {
  const auto series = key.number > 0 ? series_.find(series_of(key)) : series_.end();
  if (series == series_.end() || key.number < series->second.first) return key;
  const auto& [first, places] = series->second;
  Key model = key;
  model.number = first - places.size() + (key.number - first) % places.size();
  return model;
}

std::size_t LearnedOrder::ready() const {
  std::size_t count = 0;
  while (count < batches_.size()) {
    const std::size_t place = (next_ + count) % batches_.size();
    if (held_[place] < batches_[place].size()) break;
    ++count;
  }
  return count;
}

const std::vector<Key>& LearnedOrder::take() {
  const std::size_t taken = next_;
  std::vector<Key>& batch = batches_[taken];
  held_[taken] = 0;
  next_ = (next_ + 1) % batches_.size();
  ++taken_;
  if (series_.empty()) return batch;
  last_taken_ = batch;
  for (Key& key : batch) {
    if (key.number == 0) continue;
    key.number += series_.at(series_of(key)).places.size();
    held_[taken] += early_.erase(key);
  }
  return last_taken_;
}

std::int64_t LearnedOrder::proof() const noexcept {
  return static_cast<std::int64_t>((fingerprint_ ^ taken_ * 0x9e3779b97f4a7c15U) >> 1U);
}

bool is_stuck(const Active& active, Pending::Time submitted_last, Pending::Time now, std::chrono::milliseconds limit) {
  constexpr int kWhileOthersCome = 20;
  const auto since = submitted_last + limit <= now ? now - limit : now - kWhileOthersCome * limit;
  return std::any_of(active.begin(), active.end(), [since](const auto& each) {
    return each.second->phase == Pending::Phase::held && each.second->since <= since;
  });
}

}  // namespace ddp::named
