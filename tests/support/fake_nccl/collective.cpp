// Collectives through the room's slots: each rank puts a piece of its contribution into its slot, waits for all ranks,
// and takes what it needs from their slots.
#include "collective.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>

#include "group.hpp"

namespace fake_nccl {
namespace {

const char* name_of(Function function) {
  switch (function) {
    case Function::all_reduce: return "AllReduce";
    case Function::reduce: return "Reduce";
    case Function::broadcast: return "Broadcast";
    case Function::all_gather: return "AllGather";
    case Function::reduce_scatter: return "ReduceScatter";
    case Function::send: return "Send";
    default: return "Recv";
  }
}

std::string describe(const CallRecord& call) {
  return std::string(name_of(static_cast<Function>(call.function))) + "(count " + std::to_string(call.count) +
         ", type " + std::to_string(call.type) + ", op " + std::to_string(call.op) + ", root " +
         std::to_string(call.root) + ")";
}

/// A running collective on one rank.
class Collective {
 public:
  Collective(ncclComm_t comm, Room& room, const Task& task, PeerWatch& watch)
      : comm_(comm), room_(room), task_(task), watch_(watch), element_(size_of(task.type)) {}

  bool run() {
    const std::size_t piece = kSlotBytes / element_ * element_;
    const std::size_t total = task_.count * element_ * (task_.function == Function::reduce_scatter ? ranks() : 1);
    bool first = true;
    for (std::size_t at = 0; at < total; at += piece) {
      if (!round(at, std::min(piece, total - at), first)) return false;
      first = false;
    }
    return true;
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(room_.size()); }

  /// Waits until all ranks have reached @p step.
  bool reached(std::uint64_t step) {
    return wait_until(
        [&] {
          for (int rank = 0; rank < room_.size(); ++rank) {
            if (room_.place(rank).step < step) return false;
          }
          return true;
        },
        [&] { return watch_.stopped(); });
  }

  bool round(std::size_t at, std::size_t bytes, bool first) {
    RankPlace& mine = room_.place(comm_->rank);
    const std::uint64_t step = mine.step;
    if (!reached(step)) return false;
    contribute(at, bytes);
    if (first) mine.call = record();
    mine.step = step + 1;
    if (!reached(step + 1)) return false;
    if (first && !matches(mine.call)) return false;
    take(at, bytes);
    mine.step = step + 2;
    return true;
  }

  CallRecord record() const {
    // A user's operation has a different number on each rank.
    const std::uint32_t op = std::min<std::uint32_t>(task_.op, ncclNumOps);
    return {.function = static_cast<std::uint32_t>(task_.function),
            .type = static_cast<std::uint32_t>(task_.type),
            .op = op,
            .root = task_.root,
            .count = task_.count};
  }

  /// NCCL matches only by the order of launches; different arguments on another rank hang or corrupt data
  /// (enqueue.cc:3143: only its global check mode compares).
  bool matches(const CallRecord& mine) {
    for (int rank = 0; rank < room_.size(); ++rank) {
      const CallRecord& other = room_.place(rank).call;
      if (other == mine) continue;
      mismatch(comm_, watch_, describe(mine) + ", but rank " + std::to_string(rank) + " " + describe(other));
      return false;
    }
    return true;
  }

  void contribute(std::size_t at, std::size_t bytes) {
    if (task_.function == Function::broadcast && comm_->rank != task_.root) return;
    std::byte* slot = room_.slot(comm_->rank);
    std::memcpy(slot, static_cast<const std::byte*>(task_.send) + at, bytes);
    if (task_.reduction.kind == Reduction::Kind::scaled_sum) scale(task_.reduction, task_.type, slot, bytes / element_);
  }

  void take(std::size_t at, std::size_t bytes) {
    auto* to = static_cast<std::byte*>(task_.receive);
    const std::size_t part = task_.count * element_;
    switch (task_.function) {
      case Function::broadcast: std::memcpy(to + at, room_.slot(task_.root), bytes); return;
      case Function::all_gather:
        for (int rank = 0; rank < room_.size(); ++rank) {
          std::memcpy(to + static_cast<std::size_t>(rank) * part + at, room_.slot(rank), bytes);
        }
        return;
      case Function::reduce:
        if (comm_->rank == task_.root) reduce_into(to + at, 0, bytes);
        return;
      case Function::reduce_scatter: {
        const std::size_t mine = static_cast<std::size_t>(comm_->rank) * part;
        const std::size_t begin = std::max(at, mine);
        const std::size_t end = std::min(at + bytes, mine + part);
        if (begin < end) reduce_into(to + (begin - mine), begin - at, end - begin);
        return;
      }
      default: reduce_into(to + at, 0, bytes);
    }
  }

  void reduce_into(std::byte* to, std::size_t offset, std::size_t bytes) {
    std::vector<const std::byte*> inputs;
    for (int rank = 0; rank < room_.size(); ++rank) inputs.push_back(room_.slot(rank) + offset);
    fake_nccl::reduce(task_.reduction, task_.type, inputs, to, bytes / element_);
  }

  ncclComm_t comm_;
  Room& room_;
  const Task& task_;
  PeerWatch& watch_;
  std::size_t element_;
};

}  // namespace

bool touch_buffers(ncclComm_t comm, const Task& task) {
  const std::size_t part = task.count * size_of(task.type);
  const std::size_t all = part * static_cast<std::size_t>(comm->size);
  const bool root = comm->rank == task.root;
  switch (task.function) {
    case Function::send: return touch(task.send, part);
    case Function::receive: return touch(task.receive, part);
    case Function::broadcast: return (!root || touch(task.send, part)) && touch(task.receive, part);
    case Function::reduce: return touch(task.send, part) && (!root || touch(task.receive, part));
    case Function::all_gather: return touch(task.send, part) && touch(task.receive, all);
    case Function::reduce_scatter: return touch(task.send, all) && touch(task.receive, part);
    default: return touch(task.send, part) && touch(task.receive, part);
  }
}

bool run_collective(ncclComm_t comm, Room& room, const Task& task, PeerWatch& watch) {
  return Collective(comm, room, task, watch).run();
}

namespace {

/// Floating point of 8 or 16 bits.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool infinity;  ///< false: the largest exponent has numbers, and all bits set are NaN

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint32_t mantissa_mask() const { return (1U << mantissa_bits) - 1; }
  std::uint32_t exponent_mask() const { return (1U << exponent_bits) - 1; }
  int sign_shift() const { return exponent_bits + mantissa_bits; }

  float decode(std::uint32_t bits) const {
    const std::uint32_t exponent = bits >> mantissa_bits & exponent_mask();
    const std::uint32_t mantissa = bits & mantissa_mask();
    const float sign = (bits >> sign_shift() & 1) != 0 ? -1.0F : 1.0F;
    if (exponent == exponent_mask() && infinity) {
      return mantissa == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    }
    if (exponent == exponent_mask() && mantissa == mantissa_mask()) return std::numeric_limits<float>::quiet_NaN();
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - bias() - mantissa_bits);
    const auto whole = static_cast<float>(mantissa + (1U << mantissa_bits));
    return sign * std::ldexp(whole, static_cast<int>(exponent) - bias() - mantissa_bits);
  }

  /// Rounds to the nearest, ties to even; too large 8-bit values become the largest (as CUDA's saturating conversions).
  std::uint32_t encode(float value) const {
    const std::uint32_t sign = std::signbit(value) ? 1U << sign_shift() : 0;
    const std::uint32_t top = exponent_mask() << mantissa_bits;
    const std::uint32_t largest = infinity ? top - 1 : (top | mantissa_mask()) - 1;
    if (std::isnan(value)) return infinity ? top | (1U << (mantissa_bits - 1)) : top | mantissa_mask();
    const bool saturates = sign_shift() < 8;
    const std::uint32_t beyond = saturates ? largest : top;
    if (std::isinf(value)) return sign | beyond;
    const double magnitude = std::abs(static_cast<double>(value));
    int exponent = magnitude == 0 ? 1 - bias() : std::ilogb(magnitude);
    exponent = std::max(exponent, 1 - bias());
    const double scaled = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
    // A carry out of the mantissa goes into the exponent by itself.
    const auto bits =
        static_cast<std::int64_t>(scaled) + (static_cast<std::int64_t>(exponent + bias() - 1) << mantissa_bits);
    return sign | (bits > static_cast<std::int64_t>(largest) ? beyond : static_cast<std::uint32_t>(bits));
  }
};

constexpr Format kHalf{5, 10, true};
constexpr Format kBfloat{8, 7, true};
constexpr Format kE4m3{4, 3, false};
constexpr Format kE5m2{5, 2, true};

/// How elements are stored, and the type to compute in.
template <class Stored, class Computed = Stored>
struct Plain {
  using Value = Computed;
  static constexpr std::size_t kBytes = sizeof(Stored);
  static Value load(const void* from) {
    Stored value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void store(Value value, void* to) {
    const auto stored = static_cast<Stored>(value);
    std::memcpy(to, &stored, sizeof stored);
  }
};
template <class Bits, const Format& kFormat>
struct Small {
  using Value = float;
  static constexpr std::size_t kBytes = sizeof(Bits);
  static Value load(const void* from) { return kFormat.decode(Plain<Bits>::load(from)); }
  static void store(Value value, void* to) { Plain<Bits>::store(static_cast<Bits>(kFormat.encode(value)), to); }
};

/// Calls @p use with the type's storage format.
template <class Use>
auto with_type(ncclDataType_t type, Use&& use) {
  switch (type) {
    case ncclInt8: return use(Plain<std::int8_t>{});
    case ncclUint8: return use(Plain<std::uint8_t>{});
    case ncclInt32: return use(Plain<std::int32_t>{});
    case ncclUint32: return use(Plain<std::uint32_t>{});
    case ncclInt64: return use(Plain<std::int64_t>{});
    case ncclUint64: return use(Plain<std::uint64_t>{});
    case ncclFloat16: return use(Small<std::uint16_t, kHalf>{});
    case ncclFloat32: return use(Plain<float>{});
    case ncclFloat64: return use(Plain<double>{});
    case ncclBfloat16: return use(Small<std::uint16_t, kBfloat>{});
    case ncclFloat8e4m3: return use(Small<std::uint8_t, kE4m3>{});
    default: return use(Small<std::uint8_t, kE5m2>{});
  }
}

/// Integers wrap around.
template <class Value>
Value add(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>) {
    return static_cast<Value>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}
template <class Value>
Value multiply(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>) {
    return static_cast<Value>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}
template <class Value>
Value combine(Reduction::Kind kind, Value a, Value b) {
  switch (kind) {
    case Reduction::Kind::product: return multiply(a, b);
    case Reduction::Kind::maximum: return a < b ? b : a;
    case Reduction::Kind::minimum: return b < a ? b : a;
    default: return add(a, b);
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  constexpr int kFirstWithEightBits = version_code(2, 24, 3);
  if (static_cast<unsigned>(type) > ncclFloat8e5m2) return 0;
  if (type >= ncclFloat8e4m3 && settings().version < kFirstWithEightBits) return 0;
  return with_type(type, [](auto way) { return decltype(way)::kBytes; });
}

void scale(const Reduction& reduction, ncclDataType_t type, void* data, std::size_t count) {
  const void* scalar = reduction.scalar_in_memory ? reduction.scalar : &reduction.immediate;
  with_type(type, [&](auto way) {
    using Way = decltype(way);
    const auto factor = Way::load(scalar);
    auto* at = static_cast<std::byte*>(data);
    for (std::size_t i = 0; i < count; ++i, at += Way::kBytes) Way::store(multiply(Way::load(at), factor), at);
  });
}

void reduce(const Reduction& reduction, ncclDataType_t type, const std::vector<const std::byte*>& inputs, void* output,
            std::size_t count) {
  with_type(type, [&](auto way) {
    using Way = decltype(way);
    auto* to = static_cast<std::byte*>(output);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = i * Way::kBytes;
      auto value = Way::load(inputs[0] + at);
      for (std::size_t k = 1; k < inputs.size(); ++k) {
        value = combine(reduction.kind, value, Way::load(inputs[k] + at));
      }
      if (reduction.kind == Reduction::Kind::average) {
        using Value = typename Way::Value;
        value = static_cast<Value>(value / static_cast<Value>(inputs.size()));
      }
      Way::store(value, to + at);
    }
  });
}

double to_double(ncclDataType_t type, const void* element) {
  return with_type(type, [&](auto way) { return static_cast<double>(decltype(way)::load(element)); });
}

void from_double(ncclDataType_t type, double value, void* element) {
  with_type(type, [&](auto way) {
    using Way = decltype(way);
    Way::store(static_cast<typename Way::Value>(value), element);
  });
}

// Sends and receives of a group, all at the same time: through a mailbox per pair of ranks, piece by piece.

namespace {

/// A running send or receive.
struct Transfer {
  const Task* task;
  std::size_t bytes;
  std::size_t at = 0;
  bool begun = false;
  bool over() const { return begun && at == bytes; }
};

enum class Progress { none, some, failed };

Progress send_piece(Transfer& transfer, Mailbox& box) {
  if (box.read != box.written) return Progress::none;
  const std::size_t bytes = std::min(kMailboxBytes, transfer.bytes - transfer.at);
  box.message_bytes = transfer.bytes;
  box.type = static_cast<std::uint32_t>(transfer.task->type);
  box.piece_bytes = static_cast<std::uint32_t>(bytes);
  if (bytes != 0) std::memcpy(box.data, static_cast<const std::byte*>(transfer.task->send) + transfer.at, bytes);
  transfer.at += bytes;
  transfer.begun = true;
  box.written += 1;
  return Progress::some;
}

Progress receive_piece(Transfer& transfer, Mailbox& box) {
  if (box.read == box.written) return Progress::none;
  if (box.message_bytes != transfer.bytes) return Progress::failed;
  if (box.piece_bytes != 0) {
    std::memcpy(static_cast<std::byte*>(transfer.task->receive) + transfer.at, box.data, box.piece_bytes);
  }
  transfer.at += box.piece_bytes;
  transfer.begun = true;
  box.read += 1;
  return Progress::some;
}

}  // namespace

bool run_transfers(ncclComm_t comm, Room& room, const std::vector<const Task*>& tasks, PeerWatch& watch) {
  std::vector<Transfer> transfers;
  transfers.reserve(tasks.size());
  for (const Task* task : tasks) transfers.push_back({.task = task, .bytes = task->count * size_of(task->type)});
  // One step of each; with one peer and direction, in call order.
  const auto turn = [&](bool& over, bool& failed) {
    bool moved = false;
    over = true;
    std::set<std::pair<Function, int>> busy;
    for (Transfer& transfer : transfers) {
      if (transfer.over()) continue;
      over = false;
      const int peer = transfer.task->root;
      if (!busy.emplace(transfer.task->function, peer).second) continue;
      const bool sends = transfer.task->function == Function::send;
      Mailbox& box = sends ? room.mailbox(comm->rank, peer) : room.mailbox(peer, comm->rank);
      const Progress progress = sends ? send_piece(transfer, box) : receive_piece(transfer, box);
      moved = moved || progress == Progress::some;
      if (progress != Progress::failed) continue;
      failed = true;
      return mismatch(comm, watch,
                      "Recv of " + std::to_string(transfer.bytes) + " bytes, but rank " + std::to_string(peer) +
                          " sends " + std::to_string(box.message_bytes));
    }
    return moved;
  };
  bool over = false;
  bool failed = false;
  const bool ended = wait_until(
      [&] {
        while (turn(over, failed) && !watch.stopped()) {
        }
        return over || failed;
      },
      [&] { return watch.stopped(); });
  return ended && !failed;
}

}  // namespace fake_nccl
