#include <ddp/broadcast_coalesced.hpp>

#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include <ddp/batch.hpp>
#include <ddp/wait_watch.hpp>

#include "base/errors.hpp"

namespace ddp {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{25} * 1024 * 1024;
constexpr std::size_t kUnderWay = 2;  // the next is packed while one travels

/// Tensors that travel together.
struct CoalescedMessage {
  std::span<const TensorView> tensors;
  std::shared_ptr<std::vector<std::uint8_t>> memory{};  ///< none: one tensor, without a copy
  std::optional<Work> work{};
};

void pack(const CoalescedMessage& message) {
  std::uint8_t* to = message.memory->data();
  for (const TensorView& tensor : message.tensors) {
    if (tensor.size_bytes() == 0) continue;
    std::memcpy(to, tensor.data(), tensor.size_bytes());
    to += tensor.size_bytes();
  }
}

void end(const CoalescedMessage& message, bool unpack) {
  if (!message.memory) return message.work->wait();
  message.work->wait_watched();
  if (!unpack) return;
  const std::uint8_t* from = message.memory->data();
  for (const TensorView& tensor : message.tensors) {
    if (tensor.size_bytes() == 0) continue;
    std::memcpy(tensor.data(), from, tensor.size_bytes());
    from += tensor.size_bytes();
  }
}

}  // namespace

void broadcast_coalesced(ProcessGroup& group, std::span<const TensorView> all, int root, std::optional<Stream> stream) {
  constexpr auto kAttempted = "broadcasting tensors";
  if (root < 0 || root >= group.size()) {
    base::throw_invalid_argument(kAttempted, fmt::format("rank {} is not one of {}", root, group.size()), {});
  }
  if (group.size() == 1) return;
  Batch on_device{group};
  std::vector<TensorView> tensors;
  for (const TensorView& tensor : all) {
    if (tensor.device().type == DeviceType::cpu) {
      tensors.push_back(tensor);
    } else if (tensor.numel() > 0) {
      on_device.broadcast(tensor, root);
    }
  }
  if (on_device.size() > 0) {
    CallOptions options;
    options.stream = stream;
    on_device.start(options).wait();
  }
  std::deque<CoalescedMessage> under_way;
  for (std::size_t first = 0; first < tensors.size();) {
    std::size_t bytes = 0;
    std::size_t past = first;
    while (past < tensors.size() && (past == first || bytes + tensors[past].size_bytes() <= kMessageBytes)) {
      bytes += tensors[past++].size_bytes();
    }
    const auto part = std::span{tensors}.subspan(first, past - first);
    first = past;
    if (bytes == 0) continue;
    CoalescedMessage message{.tensors = part};
    // who may be called away leaves a copy
    if (part.size() == 1 && (WaitWatch::current() == nullptr || bytes > kMessageBytes)) {
      message.work = group.broadcast({part[0].data(), DType::uint8, {static_cast<std::int64_t>(bytes)}}, root);
    } else {
      message.memory = std::make_shared<std::vector<std::uint8_t>>(bytes);
      if (group.rank() == root) pack(message);
      message.work = group.broadcast(*message.memory, root, {{}, message.memory});
    }
    under_way.push_back(std::move(message));
    if (under_way.size() < kUnderWay) continue;
    end(under_way.front(), group.rank() != root);
    under_way.pop_front();
  }
  for (const CoalescedMessage& message : under_way) end(message, group.rank() != root);
}

int highest_active_rank(ProcessGroup& group, bool active) {
  std::vector<std::int32_t> rank{active ? group.rank() : -1};
  group.all_reduce(rank, ReduceOp::max).wait();
  if (rank[0] >= 0) return rank[0];
  base::throw_invalid_argument("finding the highest active rank", "no rank is active", {});
}

}  // namespace ddp
