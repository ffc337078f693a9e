#include "named/execution.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include <ddp/batch.hpp>

namespace ddp::named {
namespace {

// Larger ones gain nothing from being packed, which copies them twice.
constexpr std::size_t kMostPackedBytes = 256 * 1024;
constexpr std::size_t kAlignment = 64;

std::size_t row_bytes(const TensorView& tensor) {
  std::size_t bytes = size_of(tensor.dtype());
  for (const std::int64_t size : tensor.shape().subspan(1)) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

std::shared_ptr<std::byte> allocate(std::size_t bytes) {
  auto* const memory =
      static_cast<std::byte*>(::operator new (std::max<std::size_t>(bytes, 1), std::align_val_t{kAlignment}));
  return {memory, [](std::byte* old) { ::operator delete (old, std::align_val_t{kAlignment}); }};
}

TensorView bytes_at(std::byte* memory, std::size_t bytes) {
  return std::span{reinterpret_cast<std::uint8_t*>(memory), bytes};
}

/// Rows of each rank's part: the first ones have one more.
std::int64_t rows_of_part(std::int64_t rows, int size, int rank) { return rows / size + (rank < rows % size ? 1 : 0); }

}  // namespace

/// Small tensors of one type, one behind the other.
struct Execution::Packed {
  std::shared_ptr<std::byte> memory{};
  std::vector<TensorView> tensors{};
  TensorView whole{};
};

std::shared_ptr<Subject> stand_in(const Request& request) {
  auto subject = std::make_shared<Subject>();
  subject->request = request;
  std::vector<std::shared_ptr<std::byte>> memory;
  for (TensorFacts facts : request.facts.tensors) {
    if (request.key.kind == Kind::all_gather && !facts.shape.empty()) facts.shape.front() = 0;
    std::size_t bytes = size_of(facts.dtype);
    for (const std::int64_t size : facts.shape) bytes *= static_cast<std::size_t>(size);
    memory.push_back(allocate(bytes));
    std::memset(memory.back().get(), 0, bytes);
    subject->tensors.emplace_back(memory.back().get(), facts.dtype, std::span<const std::int64_t>(facts.shape));
  }
  subject->keep_alive = std::make_shared<std::vector<std::shared_ptr<std::byte>>>(std::move(memory));
  return subject;
}

EagerRows eager_rows(const TensorView& tensor) {
  EagerRows given;
  if (tensor.size_bytes() > given.values.size()) return given;
  given.rows = tensor.shape().front();
  if (tensor.numel() > 0) std::memcpy(given.values.data(), tensor.data(), tensor.size_bytes());
  return given;
}

NamedResult gathered(const TensorView& tensor, std::span<const EagerRows> ranks) {
  NamedResult result;
  const std::size_t row = row_bytes(tensor);
  for (const EagerRows& each : ranks) {
    result.rows.push_back(each.rows);
    result.bytes += static_cast<std::size_t>(each.rows) * row;
  }
  result.memory = allocate(result.bytes);
  std::byte* to = result.memory.get();
  for (const EagerRows& each : ranks) {
    const std::size_t bytes = static_cast<std::size_t>(each.rows) * row;
    if (bytes > 0) std::memcpy(to, each.values.data(), bytes);
    to += bytes;
  }
  return result;
}

Execution::Execution(ProcessGroup group, std::vector<std::shared_ptr<Subject>> subjects)
    : group_(std::move(group)),
      subjects_(std::move(subjects)),
      owner_(std::make_shared<std::vector<std::shared_ptr<Subject>>>(subjects_)) {}

Execution::~Execution() = default;

std::optional<Work> Execution::next() {
  const Kind kind = only().request.key.kind;
  const int stage = stage_++;
  std::optional<Work> started;
  if (kind == Kind::all_gather || kind == Kind::all_to_all) {
    if (stage == 0) return exchange_rows();
    if (stage == 1) started = kind == Kind::all_gather ? all_gather() : all_to_all();
  } else if (stage == 0) {
    if (kind == Kind::all_reduce) started = all_reduce();
    if (kind == Kind::broadcast) started = broadcast();
    if (kind == Kind::reduce_scatter) started = reduce_scatter();
  }
  if (started) return started;
  unpack();
  return std::nullopt;
}

std::optional<Work> Execution::all_reduce() {
  std::map<DType, std::vector<TensorView>> small;
  std::vector<TensorView> alone;
  for (const auto& subject : subjects_) {
    for (const TensorView& tensor : subject->tensors) {
      if (tensor.numel() == 0) continue;
      tensor.size_bytes() <= kMostPackedBytes ? small[tensor.dtype()].push_back(tensor) : alone.push_back(tensor);
    }
  }
  for (auto& [dtype, tensors] : small) {
    if (tensors.size() == 1) {
      alone.push_back(tensors.front());
      continue;
    }
    std::size_t elements = 0;
    for (const TensorView& tensor : tensors) elements += tensor.numel();
    Packed packed{.memory = allocate(elements * size_of(dtype)), .tensors = std::move(tensors)};
    packed.whole = TensorView(packed.memory.get(), dtype, {static_cast<std::int64_t>(elements)});
    std::byte* at = packed.memory.get();
    for (const TensorView& tensor : packed.tensors) {
      std::memcpy(at, tensor.data(), tensor.size_bytes());
      at += tensor.size_bytes();
    }
    packed_count_ += packed.tensors.size();
    packed_.push_back(std::move(packed));
  }
  if (alone.empty() && packed_.empty()) return std::nullopt;
  const ReduceOp op = only().request.facts.op;
  Batch batch(group_);
  std::vector<std::shared_ptr<const void>> owners{owner_};
  for (const Packed& packed : packed_) {
    batch.all_reduce(packed.whole, op);
    owners.push_back(packed.memory);
  }
  for (const TensorView& tensor : alone) batch.all_reduce(tensor, op);
  CallOptions options;
  options.keep_alive = std::make_shared<std::vector<std::shared_ptr<const void>>>(std::move(owners));
  return batch.start(std::move(options));
}

void Execution::unpack() {
  for (const Packed& packed : packed_) {
    const std::byte* at = packed.memory.get();
    for (const TensorView& tensor : packed.tensors) {
      std::memcpy(tensor.data(), at, tensor.size_bytes());
      at += tensor.size_bytes();
    }
  }
}

std::optional<Work> Execution::broadcast() {
  const auto& ranks = group_.global_ranks();
  const auto root = std::find(ranks.begin(), ranks.end(), only().request.facts.root) - ranks.begin();
  Batch batch(group_);
  for (const TensorView& tensor : only().tensors) {
    if (tensor.numel() > 0)
      batch.broadcast(bytes_at(static_cast<std::byte*>(tensor.data()), tensor.size_bytes()), static_cast<int>(root));
  }
  if (batch.size() == 0) return std::nullopt;
  CallOptions options;
  options.keep_alive = owner_;
  return batch.start(std::move(options));
}

/// Of all_gather: the first dimension of each tensor; of all_to_all: the rows for each rank.
std::optional<Work> Execution::exchange_rows() {
  if (only().request.key.kind == Kind::all_gather) {
    for (const TensorView& tensor : only().tensors) own_rows_.push_back(tensor.shape().front());
  } else {
    own_rows_ = only().splits;
  }
  all_rows_.resize(own_rows_.size() * static_cast<std::size_t>(group_.size()));
  if (own_rows_.empty()) return next();
  return group_.all_gather(own_rows_, all_rows_);
}

std::optional<Work> Execution::all_gather() {
  const auto size = static_cast<std::size_t>(group_.size());
  const std::size_t tensors = own_rows_.size();
  Batch batch(group_);
  std::vector<std::shared_ptr<const void>> owners{owner_};
  for (std::size_t i = 0; i < tensors; ++i) {
    const TensorView& tensor = only().tensors[i];
    NamedResult result;
    std::vector<std::size_t> counts;
    for (std::size_t rank = 0; rank < size; ++rank) {
      result.rows.push_back(all_rows_[rank * tensors + i]);
      counts.push_back(static_cast<std::size_t>(result.rows.back()) * row_bytes(tensor));
      result.bytes += counts.back();
    }
    result.memory = allocate(result.bytes);
    owners.push_back(result.memory);
    if (result.bytes > 0) {
      batch.all_gather_v(bytes_at(static_cast<std::byte*>(tensor.data()), tensor.size_bytes()),
                         bytes_at(result.memory.get(), result.bytes), counts);
    }
    only().results.push_back(std::move(result));
  }
  if (batch.size() == 0) return std::nullopt;
  CallOptions options;
  options.keep_alive = std::make_shared<std::vector<std::shared_ptr<const void>>>(std::move(owners));
  return batch.start(std::move(options));
}

std::optional<Work> Execution::all_to_all() {
  const auto size = static_cast<std::size_t>(group_.size());
  const auto own = static_cast<std::size_t>(group_.rank());
  const TensorView& tensor = only().tensors.front();
  const std::size_t row = row_bytes(tensor);
  NamedResult result;
  for (std::size_t rank = 0; rank < size; ++rank) {
    result.rows.push_back(all_rows_[rank * size + own]);
    result.bytes += static_cast<std::size_t>(result.rows.back()) * row;
  }
  result.memory = allocate(result.bytes);
  Batch batch(group_, "all_to_all", row);
  std::byte* from = static_cast<std::byte*>(tensor.data());
  std::byte* to = result.memory.get();
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::size_t sent = static_cast<std::size_t>(own_rows_[rank]) * row;
    const std::size_t received = static_cast<std::size_t>(result.rows[rank]) * row;
    if (rank == own) {
      if (sent > 0) std::memcpy(to, from, sent);
    } else {
      if (sent > 0) batch.send(bytes_at(from, sent), static_cast<int>(rank));
      if (received > 0) batch.recv(bytes_at(to, received), static_cast<int>(rank));
    }
    from += sent;
    to += received;
  }
  CallOptions options;
  options.keep_alive =
      std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<std::byte>>>(owner_, result.memory);
  only().results.push_back(std::move(result));
  if (batch.size() == 0) return std::nullopt;
  return batch.start(std::move(options));
}

/// Parts are padded to the longest, so that all are equal.
std::optional<Work> Execution::reduce_scatter() {
  const int size = group_.size();
  Batch batch(group_);
  std::vector<std::shared_ptr<const void>> owners{owner_};
  for (const TensorView& tensor : only().tensors) {
    const std::int64_t rows = tensor.shape().front();
    const std::size_t row = row_bytes(tensor);
    const std::size_t longest = static_cast<std::size_t>(rows_of_part(rows, size, 0)) * row;
    NamedResult result{.memory = allocate(longest), .rows = {rows_of_part(rows, size, group_.rank())}};
    result.bytes = static_cast<std::size_t>(result.rows.front()) * row;
    TensorView input = tensor;
    if (rows % size != 0) {
      const auto padded = allocate(longest * static_cast<std::size_t>(size));
      std::memset(padded.get(), 0, longest * static_cast<std::size_t>(size));
      const auto* from = static_cast<const std::byte*>(tensor.data());
      for (int rank = 0; rank < size; ++rank) {
        const std::size_t part = static_cast<std::size_t>(rows_of_part(rows, size, rank)) * row;
        if (part > 0) std::memcpy(padded.get() + longest * static_cast<std::size_t>(rank), from, part);
        from += part;
      }
      owners.push_back(padded);
      const auto elements =
          static_cast<std::int64_t>(longest * static_cast<std::size_t>(size) / size_of(tensor.dtype()));
      input = TensorView(padded.get(), tensor.dtype(), {elements});
    }
    owners.push_back(result.memory);
    if (longest > 0) {
      const auto elements = static_cast<std::int64_t>(longest / size_of(tensor.dtype()));
      batch.reduce_scatter(input, TensorView(result.memory.get(), tensor.dtype(), {elements}), only().request.facts.op);
    }
    only().results.push_back(std::move(result));
  }
  if (batch.size() == 0) return std::nullopt;
  CallOptions options;
  options.keep_alive = std::make_shared<std::vector<std::shared_ptr<const void>>>(std::move(owners));
  return batch.start(std::move(options));
}

}  // namespace ddp::named
