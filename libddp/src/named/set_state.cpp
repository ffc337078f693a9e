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
      places_.emplace(key, i);
      for (const char c : key.name) fingerprint_ = fingerprint_ * 1099511628211U ^ static_cast<unsigned char>(c);
      fingerprint_ = fingerprint_ * 31 + static_cast<std::uint64_t>(key.kind) + 1;
    }
    fingerprint_ = fingerprint_ * 31 + 7;
  }
}

bool LearnedOrder::hold(const Key& key) {
  const auto place = places_.find(key);
  if (place == places_.end()) return false;
  ++held_[place->second];
  return true;
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
  const std::vector<Key>& batch = batches_[next_];
  held_[next_] = 0;
  next_ = (next_ + 1) % batches_.size();
  ++taken_;
  return batch;
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
