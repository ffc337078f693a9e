#include "store_server/key_space.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::store_server {
namespace {

// Answers to CHECK, WAIT, BARRIER and CANCEL_WAIT.
constexpr char kReady = 0;
constexpr char kNotReady = 1;
constexpr char kStopWaiting = 0;
constexpr char kWaitCanceled = 1;

// Overhead of a value, a queue item, an awaited key or a waiting client: nodes, strings, places in tables. Measured
// with glibc's malloc: 100 to 150 bytes.
constexpr std::size_t kEntryBytes = 160;
constexpr std::size_t kWaiterBytes = 96;
/// A buffer this much larger than its value is freed.
constexpr std::size_t kSlackBytes = 256;

template <class Int>
void put_integer(std::string& out, Int value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, std::string_view text) {
  put_integer(out, static_cast<std::uint64_t>(text.size()));
  out.append(text);
}

[[noreturn]] void refuse(Operation operation, std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("answering a TCPStore request ({})", to_string(operation)),
               .cause = std::move(cause)}};
}

/// Like std::stoll, which torch's server uses: ignores leading blanks and anything after the number.
std::int64_t to_number(Operation operation, std::string_view text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  if (const auto [stop, error] = std::from_chars(text.data(), end, number); error == std::errc{} && stop == end) {
    return number;
  }
  const std::string copy{text};
  char* stop = nullptr;
  errno = 0;
  const long long slow = std::strtoll(copy.c_str(), &stop, 10);
  if (stop == copy.c_str() || errno == ERANGE) refuse(operation, "the key's value is not a 64-bit number");
  return slow;
}

void check_reply_size(ClientId client, Operation operation, std::size_t bytes, Outboxes& outboxes) {
  const std::size_t room = outboxes.room(client);
  if (bytes > room)
    refuse(operation, fmt::format("the answer would have {} bytes; the limit of unread ones is {}", bytes, room));
}

}  // namespace

void KeySpace::apply(ClientId client, const Request& request, Outboxes& outboxes) {
  if (!woken_.empty()) pass_on(client, &request, outboxes);
  const auto& texts = request.texts;
  switch (request.operation) {
    case Operation::validate: return;
    case Operation::set: return set(request.operation, texts[0], texts[1], outboxes);
    case Operation::compare_set: return compare_set(client, request, outboxes);
    case Operation::get: {
      const std::string_view found = value(texts[0]);
      check_reply_size(client, request.operation, sizeof(std::uint64_t) + found.size(), outboxes);
      return put_text(outboxes.outbox(client), found);
    }
    case Operation::add: {
      const std::int64_t sum = add(request.operation, texts[0], request.number);
      put_integer(outboxes.outbox(client), sum);
      return wake_all(texts[0], outboxes);
    }
    case Operation::check: {
      const bool all = std::all_of(texts.begin(), texts.end(), [this](std::string_view key) { return exists(key); });
      outboxes.outbox(client).push_back(all ? kReady : kNotReady);
      return;
    }
    case Operation::wait: return wait(client, texts, outboxes);
    case Operation::get_num_keys:
      return put_integer(outboxes.outbox(client), static_cast<std::int64_t>(values_.size()));
    case Operation::delete_key: {
      const auto found = values_.find(texts[0]);
      put_integer(outboxes.outbox(client), std::int64_t{found != values_.end() ? 1 : 0});
      if (found == values_.end()) return;
      release(kEntryBytes + found->first.size() + found->second.size());
      values_.erase(found);
      return;
    }
    case Operation::append: return append(texts[0], texts[1], outboxes);
    case Operation::multi_get: {
      std::size_t bytes = 0;
      for (const std::string_view key : texts) bytes += sizeof(std::uint64_t) + value(key).size();
      check_reply_size(client, request.operation, bytes, outboxes);
      std::string& out = outboxes.outbox(client);
      for (const std::string_view key : texts) put_text(out, value(key));
      return;
    }
    case Operation::multi_set:
      for (std::size_t i = 0; i < texts.size(); i += 2) set(request.operation, texts[i], texts[i + 1], outboxes);
      return;
    case Operation::cancel_wait:
      cancel_wait(client);
      outboxes.outbox(client).push_back(kWaitCanceled);
      return;
    case Operation::ping: return put_integer(outboxes.outbox(client), request.word);
    case Operation::queue_push: return push(texts[0], texts[1], outboxes);
    case Operation::queue_pop: return pop(client, texts[0], outboxes);
    case Operation::queue_len: {
      const auto found = queues_.find(texts[0]);
      const std::size_t length = found == queues_.end() ? 0 : found->second.size();
      return put_integer(outboxes.outbox(client), static_cast<std::int64_t>(length));
    }
    case Operation::list_keys: {
      std::size_t bytes = sizeof(std::int64_t);
      for (const auto& [key, _] : values_) bytes += sizeof(std::uint64_t) + key.size();
      check_reply_size(client, request.operation, bytes, outboxes);
      std::string& out = outboxes.outbox(client);
      put_integer(out, static_cast<std::int64_t>(values_.size()));
      for (const auto& [key, _] : values_) put_text(out, key);
      return;
    }
    case Operation::barrier: return barrier(client, request, outboxes);
  }
}

void KeySpace::forget(ClientId client, Outboxes& outboxes) {
  cancel_wait(client);
  pass_on(client, nullptr, outboxes);
}

std::string_view KeySpace::value(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::string_view{} : found->second;
}

void KeySpace::hold(Operation operation, std::size_t bytes) {
  if (bytes > most_bytes_ - held_bytes_) {
    refuse(operation, fmt::format("{} bytes more do not fit into the store, which holds {} of at most {}", bytes,
                                  held_bytes_, most_bytes_));
  }
  held_bytes_ += bytes;
}

void KeySpace::insert(Operation operation, std::string_view key, std::string_view value) {
  hold(operation, kEntryBytes + key.size() + value.size());
  values_.emplace(key, value);
}

void KeySpace::replace(Operation operation, std::string& old, std::string_view value) {
  if (value.size() > old.size()) {
    hold(operation, value.size() - old.size());
  } else {
    release(old.size() - value.size());
  }
  // assigning to the old string would keep its memory
  if (old.capacity() > 2 * value.size() + kSlackBytes) {
    old = std::string{value};
  } else {
    old = value;
  }
}

void KeySpace::set(Operation operation, std::string_view key, std::string_view value, Outboxes& outboxes) {
  if (const auto found = values_.find(key); found != values_.end()) {
    replace(operation, found->second, value);
  } else {
    insert(operation, key, value);
  }
  wake_all(key, outboxes);
}

void KeySpace::compare_set(ClientId client, const Request& request, Outboxes& outboxes) {
  const std::string_view key = request.texts[0];
  const std::string_view expected = request.texts[1];
  const std::string_view desired = request.texts[2];
  const auto found = values_.find(key);
  std::string_view now = expected;  // also for an absent key; clients rely on it
  if (found != values_.end()) {
    now = found->second == expected ? desired : std::string_view{found->second};
  } else if (expected.empty()) {
    now = desired;
  }
  check_reply_size(client, request.operation, sizeof(std::uint64_t) + now.size(), outboxes);
  if (found != values_.end()) {
    if (found->second == expected) replace(request.operation, found->second, desired);
  } else if (expected.empty()) {
    insert(request.operation, key, desired);
  }
  put_text(outboxes.outbox(client), now);
  wake_all(key, outboxes);  // as libuv's server does, also for a key that is still absent
}

std::int64_t KeySpace::add(Operation operation, std::string_view key, std::int64_t amount) {
  const auto found = values_.find(key);
  const std::int64_t before = found == values_.end() ? 0 : to_number(operation, found->second);
  // unsigned, since sums wrap around
  const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(before) + static_cast<std::uint64_t>(amount));
  if (found == values_.end()) {
    insert(operation, key, std::to_string(sum));
  } else {
    replace(operation, found->second, std::to_string(sum));
  }
  return sum;
}

void KeySpace::append(std::string_view key, std::string_view value, Outboxes& outboxes) {
  if (const auto found = values_.find(key); found != values_.end()) {
    if (found->second.size() + value.size() > kLargestValueBytes) {
      refuse(Operation::append, fmt::format("the value would have {} bytes; the limit is {}",
                                            found->second.size() + value.size(), kLargestValueBytes));
    }
    hold(Operation::append, value.size());
    found->second.append(value);
  } else {
    insert(Operation::append, key, value);
  }
  wake_all(key, outboxes);
}

// The key's value counts arrivals. It is never reset; clients that gave up stay counted.
void KeySpace::barrier(ClientId client, const Request& request, Outboxes& outboxes) {
  const std::string_view key = request.texts[0];
  const auto found = values_.find(key);
  const std::int64_t before = found == values_.end() ? 0 : to_number(Operation::barrier, found->second);
  const std::int64_t count = add(Operation::barrier, key, 1);
  if (before == INT64_MAX || count >= request.number) {
    outboxes.outbox(client).push_back(kStopWaiting);
    wake_all(key, outboxes);
    return;
  }
  cancel_wait(client);
  enqueue(Operation::barrier, client, waits_[client], key);
}

void KeySpace::push(std::string_view queue, std::string_view item, Outboxes& outboxes) {
  auto found = queues_.find(queue);
  hold(Operation::queue_push, kEntryBytes + item.size() + (found == queues_.end() ? kEntryBytes + queue.size() : 0));
  if (found == queues_.end()) found = queues_.emplace(queue, std::deque<std::string>{}).first;
  found->second.emplace_back(item);
  wake_one(queue, outboxes);
}

void KeySpace::pop(ClientId client, std::string_view queue, Outboxes& outboxes) {
  const auto found = queues_.find(queue);
  if (found == queues_.end()) return put_integer(outboxes.outbox(client), std::int64_t{0});
  std::deque<std::string>& items = found->second;
  check_reply_size(client, Operation::queue_pop, 2 * sizeof(std::uint64_t) + items.front().size(), outboxes);
  std::string& out = outboxes.outbox(client);
  put_integer(out, static_cast<std::int64_t>(items.size()));
  put_text(out, items.front());
  release(kEntryBytes + items.front().size());
  items.pop_front();
  if (!items.empty()) return;
  release(kEntryBytes + found->first.size());
  queues_.erase(found);
}

// A client has one wait; a second one replaces it.
void KeySpace::wait(ClientId client, std::span<const std::string_view> keys, Outboxes& outboxes) {
  if (std::all_of(keys.begin(), keys.end(), [this](std::string_view key) { return exists(key); })) {
    outboxes.outbox(client).push_back(kStopWaiting);
    return;
  }
  cancel_wait(client);
  Wait& wait = waits_[client];
  for (const std::string_view key : keys) {
    if (!exists(key)) enqueue(Operation::wait, client, wait, key);
  }
}

void KeySpace::enqueue(Operation operation, ClientId client, Wait& wait, std::string_view key) {
  auto found = waiters_.find(key);
  hold(operation, kWaiterBytes + (found == waiters_.end() ? kEntryBytes + key.size() : 0));
  if (found == waiters_.end()) found = waiters_.emplace(key, Row{}).first;
  Row& row = found->second;
  row.push_back({.client = client, .place = wait.places.size()});
  wait.places.push_back({.row = &*found, .waiter = std::prev(row.end())});
  ++wait.missing;
}

void KeySpace::forget_row(Map<Row>::const_iterator row) {
  release(kEntryBytes + row->first.size());
  waiters_.erase(row);
}

void KeySpace::wake_all(std::string_view key, Outboxes& outboxes) {
  if (waiters_.empty()) return;
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  const Row row = std::move(found->second);
  forget_row(found);
  for (const Waiter& waiter : row) arrived(waiter, outboxes);
}

// Wakes only the first client whose wait ends, which will take the item.
void KeySpace::wake_one(std::string_view queue, Outboxes& outboxes) {
  const auto found = waiters_.find(queue);
  if (found == waiters_.end()) return;
  Row& row = found->second;
  while (!row.empty()) {
    const Waiter waiter = row.front();
    row.pop_front();
    if (arrived(waiter, outboxes)) {
      woken_.insert_or_assign(waiter.client, std::string{queue});
      break;
    }
  }
  if (row.empty()) forget_row(found);
}

/// Notes that a key that @p waiter waits for was set. @return whether it was the last
bool KeySpace::arrived(const Waiter& waiter, Outboxes& outboxes) {
  const auto found = waits_.find(waiter.client);
  Wait& wait = found->second;
  wait.places[waiter.place].row = nullptr;
  release(kWaiterBytes);
  if (--wait.missing > 0) return false;
  waits_.erase(found);
  outboxes.outbox(waiter.client).push_back(kStopWaiting);
  return true;
}

void KeySpace::cancel_wait(ClientId client) {
  const auto found = waits_.find(client);
  if (found == waits_.end()) return;
  for (const Place& place : found->second.places) {
    if (place.row == nullptr) continue;
    release(kWaiterBytes);
    place.row->second.erase(place.waiter);
    if (place.row->second.empty()) forget_row(waiters_.find(place.row->first));
  }
  waits_.erase(found);
}

// A woken client may time out at that moment, or disconnect. Then the item wakes another.
void KeySpace::pass_on(ClientId client, const Request* request, Outboxes& outboxes) {
  const auto found = woken_.find(client);
  if (found == woken_.end()) return;
  const std::string queue = std::move(found->second);
  woken_.erase(found);
  const bool taken = request != nullptr && request->operation == Operation::queue_pop && request->texts[0] == queue;
  if (!taken && queues_.contains(queue)) wake_one(queue, outboxes);
}

}  // namespace ddp::store_server
