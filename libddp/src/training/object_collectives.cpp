#include "training/object_collectives.hpp"

#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ddp/broadcast_coalesced.hpp>
#include <ddp/object_collectives.hpp>
#include <ddp/reducer.hpp>

#include "base/errors.hpp"
#include "base/message.hpp"
#include "collectives/group_calls.hpp"
#include "reducer/options_check.hpp"

namespace ddp {
namespace {

/// For the messages of gather and scatter, so that they match no transfer of the program's own.
constexpr std::uint32_t kObjectTag = 0xddb0'b1ec;

TensorView view_of(std::span<const std::byte> bytes) {
  return std::span{reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

/// All of them, even if one fails: until its end each uses memory that is the caller's.
void wait_for_all(const std::vector<Work>& works) {
  std::optional<Error> first;
  for (const Work& work : works) {
    try {
      work.wait();
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  if (first) throw Error{*first};
}

void check_root(const ProcessGroup& group, int root, const char* attempted) {
  if (root >= 0 && root < group.size()) return;
  base::throw_invalid_argument(attempted, fmt::format("rank {} is not one of {}", root, group.size()), {});
}

}  // namespace

Bytes broadcast_object(ProcessGroup& group, std::span<const std::byte> object, int root,
                       std::optional<Deadline> deadline) {
  check_root(group, root, "broadcasting an object");
  std::vector<std::int64_t> size{static_cast<std::int64_t>(object.size())};
  group.broadcast(size, root, deadline).wait();
  Bytes result;
  if (group.rank() == root) {
    result.assign(object.begin(), object.end());
  } else {
    result.resize(static_cast<std::size_t>(size[0]));
  }
  if (!result.empty()) group.broadcast(view_of(result), root, deadline).wait();
  return result;
}

std::vector<Bytes> all_gather_object(ProcessGroup& group, std::span<const std::byte> object,
                                     std::optional<Deadline> deadline) {
  return collectives::all_gather_bytes(group, object, deadline);
}

std::vector<Bytes> gather_object(ProcessGroup& group, std::span<const std::byte> object, int root,
                                 std::optional<Deadline> deadline) {
  check_root(group, root, "gathering objects");
  std::vector<std::int64_t> own_size{static_cast<std::int64_t>(object.size())};
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()));
  group.gather(own_size, sizes, root, deadline).wait();
  if (group.rank() != root) {
    if (!object.empty()) group.send(view_of(object), root, kObjectTag, deadline).wait();
    return {};
  }
  std::vector<Bytes> objects;
  std::vector<Work> arrivals;
  objects.reserve(sizes.size());
  for (const std::int64_t size : sizes) {
    const int rank = static_cast<int>(objects.size());
    if (rank == root) {
      objects.emplace_back(object.begin(), object.end());
      continue;
    }
    Bytes& from_rank = objects.emplace_back(static_cast<std::size_t>(size));
    if (size > 0) arrivals.push_back(group.recv(view_of(from_rank), rank, kObjectTag, deadline));
  }
  wait_for_all(arrivals);
  return objects;
}

Bytes scatter_object(ProcessGroup& group, std::span<const Bytes> objects, int root, std::optional<Deadline> deadline) {
  constexpr auto kAttempted = "scattering objects";
  check_root(group, root, kAttempted);
  const auto ranks = static_cast<std::size_t>(group.size());
  const bool is_root = group.rank() == root;
  std::vector<std::int64_t> sizes;
  if (is_root) {
    for (const Bytes& object : objects) sizes.push_back(static_cast<std::int64_t>(object.size()));
    // a negative size tells all ranks that root's list is wrong, and how long it is
    if (objects.size() != ranks) sizes.assign(ranks, -1 - static_cast<std::int64_t>(objects.size()));
  }
  std::vector<std::int64_t> own_size(1);
  group.scatter(sizes, own_size, root, deadline).wait();
  if (own_size[0] < 0) {
    base::throw_invalid_argument(kAttempted,
                                 fmt::format("rank {} gives {} for {} ranks", root, -1 - own_size[0], ranks),
                                 "give one for each rank");
  }
  if (is_root) {
    std::vector<Work> departures;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (static_cast<int>(rank) == root || objects[rank].empty()) continue;
      departures.push_back(group.send(view_of(objects[rank]), static_cast<int>(rank), kObjectTag, deadline));
    }
    wait_for_all(departures);
    return objects[static_cast<std::size_t>(root)];
  }
  Bytes result(static_cast<std::size_t>(own_size[0]));
  if (!result.empty()) group.recv(view_of(result), root, kObjectTag, deadline).wait();
  return result;
}

void training::verify_state(ProcessGroup& group, std::span<const NamedTensor> tensors, const std::string& call) {
  std::vector<Parameter> compared;
  for (const NamedTensor& each : tensors) compared.push_back({.name = each.name, .value = each.tensor});
  reducer::verify_parameters(group, compared, call);
}

void broadcast_state(ProcessGroup& group, std::span<const NamedTensor> tensors, int root,
                     std::optional<Stream> stream) {
  training::verify_state(group, tensors, fmt::format("root {}", root));
  std::vector<TensorView> views;
  for (const NamedTensor& each : tensors) views.push_back(each.tensor);
  broadcast_coalesced(group, views, root, stream);
}

}  // namespace ddp

namespace ddp::training {
namespace {

/// Of a rank's action.
struct ActionReport {
  Bytes result{};
  std::optional<ErrorDetail> failure{};
};
constexpr auto description(const ActionReport*) {
  return base::describe({"report of a rank's action"}, base::fields<&ActionReport::result, &ActionReport::failure>());
}

ActionReport report_of(const std::function<Bytes()>& action) {
  try {
    return {.result = action()};
  } catch (const Error& error) {
    return {.failure = error.detail()};
  } catch (const std::exception& error) {  // no memory
    return {.failure = ErrorDetail{.code = ErrorCode::system,
                                   .attempted = "doing a rank's part of a joint action",
                                   .cause = error.what()}};
  }
}

}  // namespace

std::vector<Bytes> act_jointly(ProcessGroup& group, Deadline deadline, const std::function<Bytes()>& action) {
  std::vector<Bytes> results;
  std::optional<ErrorDetail> first;
  std::vector<int> failed;
  for (const Bytes& bytes : collectives::all_gather_bytes(group, base::encode(report_of(action)), deadline)) {
    auto report = base::decode<ActionReport>(bytes);
    if (report.failure) {
      failed.push_back(group.global_ranks()[results.size()]);
      if (!first) first = std::move(report.failure);
    }
    results.push_back(std::move(report.result));
  }
  if (!first) return results;
  first->ranks = std::move(failed);
  throw Error{std::move(*first)};
}

}  // namespace ddp::training
