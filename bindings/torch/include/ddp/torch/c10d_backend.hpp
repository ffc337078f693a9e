// A process group as c10d's Backend, so that programs for torch.distributed run on libddp's groups.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <ddp/batch.hpp>
#include <ddp/error.hpp>
#include <ddp/key_value_store.hpp>
#include <ddp/torch/c10d_work.hpp>
#include <ddp/torch/device_streams.hpp>
#include <ddp/torch/process_group.hpp>
#include <ddp/torch/sparse_all_reduce.hpp>

namespace ddp::torch {

/// c10d's operations, with c10d's arguments: lists of one tensor for one rank, options with a timeout. Tensors are
/// on the CPU, or on this rank's CUDA device if the group serves that; all tensors of one operation are on one
/// device. Lists to gather into or scatter from are copied once, and so are dense tensors that are not in row-major
/// order; other tensors are used in place. allreduce adds sparse CPU tensors; that call waits for the other ranks'
/// calls.
/// Not supported: other operations on sparse tensors, recv from any source, and bit operations.
class C10dBackend : public ::c10d::Backend {
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<std::vector<at::Tensor>>;
  using Started = c10::intrusive_ptr<::c10d::Work>;
  using Copies = std::vector<C10dWork::Copy>;
  using Type = ::c10d::OpType;

 public:
  /// Runs the operations of @p group; every rank of it makes one. The group's timeout applies to operations without
  /// their own.
  explicit C10dBackend(ddp::ProcessGroup group)
      : ::c10d::Backend(group.rank(), group.size()),
        options_(c10::make_intrusive<Options>("ddp", group.timeout())),
        group_(std::move(group)) {}

  /// Throws Error(aborted) after shutdown() and abort().
  ddp::ProcessGroup process_group() { return group().group(); }

  /// @{
  /// Override of c10d::Backend. Operations return once issued, and throw ddp::Error for unsupported arguments.
  const std::string getBackendName() const override { return "ddp"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  /// Timeout of operations without their own.
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }

  Started broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override {
    const at::Tensor& tensor = only(tensors, "broadcast");
    const bool gives = opts.rootRank == getRank();
    const RowOrder rows(tensor, gives, !gives);
    return started(Type::BROADCAST, group().broadcast(rows.tensor(), peer(opts.rootRank), limit(opts.timeout)), tensor,
                   {tensor}, rows.copies());
  }

  Started allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override {
    const at::Tensor& tensor = only(tensors, "allreduce");
    if (tensor.layout() == at::kSparse) return add_sparse(tensor, opts);
    const ReduceOp op = reduce_op(opts.reduceOp, tensor);
    const RowOrder rows(tensor, true, true);
    return started(Type::ALLREDUCE, group().all_reduce(rows.tensor(), op, limit(opts.timeout)), tensor, {tensor},
                   rows.copies());
  }

  Started allreduce_coalesced(Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& opts) override {
    Batch batch{group().group()};
    Tensors used;
    Copies copies;
    for (const at::Tensor& tensor : tensors) {
      const ReduceOp op = reduce_op(opts.reduceOp, tensor);
      const RowOrder rows(tensor, true, true);
      batch.all_reduce(ProcessGroup::combined(rows.tensor(), op, "allreduce_coalesced"), op);
      used.push_back(rows.tensor());
      for (const C10dWork::Copy& copy : rows.copies()) copies.push_back(copy);
    }
    return started(Type::ALLREDUCE_COALESCED, batch, std::move(used), opts.timeout, tensors, std::move(copies));
  }

  Started reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override {
    const at::Tensor& tensor = only(tensors, "reduce");
    const ReduceOp op = reduce_op(opts.reduceOp, tensor);
    const RowOrder rows(tensor, true, opts.rootRank == getRank());
    return started(Type::REDUCE, group().reduce(rows.tensor(), peer(opts.rootRank), op, limit(opts.timeout)), tensor,
                   {tensor}, rows.copies());
  }

  Started allgather(Lists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& opts) override {
    const at::Tensor input = only(inputs, "allgather").contiguous();
    Tensors& parts = of_each_rank(outputs, "allgather");
    const at::Tensor flat = for_each_rank(input, getSize());
    return started(Type::ALLGATHER, group().all_gather(input, flat, limit(opts.timeout)), input, parts,
                   unpack(flat, parts));
  }

  Started _allgather_base(at::Tensor& output, at::Tensor& input, const ::c10d::AllgatherOptions& opts) override {
    const RowOrder from(input, true, false), to(output, false, true);
    return started(Type::_ALLGATHER_BASE, group().all_gather(from.tensor(), to.tensor(), limit(opts.timeout)), output,
                   {output}, to.copies());
  }

  Started allgather_coalesced(Lists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& opts) override {
    // c10d has a list of all inputs for each rank
    Tensors dense, flat, all;
    for (const at::Tensor& input : inputs) {
      dense.push_back(input.contiguous());
      flat.push_back(for_each_rank(input, getSize()));
    }
    if (outputs.size() != static_cast<std::size_t>(getSize())) refuse("allgather_coalesced", "a list for each rank");
    for (const Tensors& list : outputs) {
      if (list.size() != inputs.size()) refuse("allgather_coalesced", "as many outputs as inputs");
      all.insert(all.end(), list.begin(), list.end());
    }
    Copies copies;
    for (std::size_t i = 0; i < flat.size(); ++i) {
      for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
        copies.push_back({outputs[rank][i], flat[i][static_cast<std::int64_t>(rank)]});
      }
    }
    return started(Type::ALLGATHER_COALESCED, gathers(flat, dense, "allgather_coalesced"), joined(flat, dense),
                   opts.timeout, all, std::move(copies));
  }

  Started allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override {
    return started(Type::ALLGATHER_COALESCED, gathers(outputs, inputs, "allgather_into_tensor_coalesced"),
                   joined(outputs, inputs), opts.timeout, outputs);
  }

  Started gather(Lists& outputs, Tensors& inputs, const ::c10d::GatherOptions& opts) override {
    const at::Tensor input = only(inputs, "gather").contiguous();
    const int root = peer(opts.rootRank);
    if (root != getRank()) {
      return started(Type::GATHER, group().gather(input, {}, root, limit(opts.timeout)), input, {});
    }
    Tensors& parts = of_each_rank(outputs, "gather");
    const at::Tensor flat = for_each_rank(input, getSize());
    return started(Type::GATHER, group().gather(input, flat, root, limit(opts.timeout)), input, parts,
                   unpack(flat, parts));
  }

  Started scatter(Tensors& outputs, Lists& inputs, const ::c10d::ScatterOptions& opts) override {
    const at::Tensor& output = only(outputs, "scatter");
    const int root = peer(opts.rootRank);
    const at::Tensor flat = root == getRank() ? at::stack(of_each_rank(inputs, "scatter")).contiguous() : at::Tensor{};
    const RowOrder rows(output, false, true);
    return started(Type::SCATTER, group().scatter(flat, rows.tensor(), root, limit(opts.timeout)), output, {output},
                   rows.copies());
  }

  Started reduce_scatter(Tensors& outputs, Lists& inputs, const ::c10d::ReduceScatterOptions& opts) override {
    const at::Tensor& output = only(outputs, "reduce_scatter");
    const at::Tensor flat = at::stack(of_each_rank(inputs, "reduce_scatter")).contiguous();
    const ReduceOp op = reduce_op(opts.reduceOp, output);
    const RowOrder rows(output, false, true);
    return started(Type::REDUCE_SCATTER, group().reduce_scatter(flat, rows.tensor(), op, limit(opts.timeout)), output,
                   {output}, rows.copies());
  }

  Started _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override {
    const ReduceOp op = reduce_op(opts.reduceOp, output);
    const RowOrder from(input, true, false), to(output, false, true);
    return started(Type::_REDUCE_SCATTER_BASE,
                   group().reduce_scatter(from.tensor(), to.tensor(), op, limit(opts.timeout)), output, {output},
                   to.copies());
  }

  Started reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override {
    constexpr auto kWhat = "reduce_scatter_tensor_coalesced";
    if (outputs.size() != inputs.size()) refuse(kWhat, "as many outputs as inputs");
    Batch batch{group().group()};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const ReduceOp op = reduce_op(opts.reduceOp, inputs[i]);
      ProcessGroup::combined(inputs[i], op, kWhat);
      batch.reduce_scatter(ProcessGroup::row_major(inputs[i], kWhat), ProcessGroup::row_major(outputs[i], kWhat), op);
    }
    return started(coalesced_reduce_scatter<Type>(), batch, joined(outputs, inputs), opts.timeout, outputs);
  }

  /// @param output_splits, input_splits rows for each rank; empty: equally many
  Started alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const ::c10d::AllToAllOptions& opts) override {
    if (output_splits.empty() && input_splits.empty()) {
      check_dealt(output, getSize(), "output");
      check_dealt(input, getSize(), "input");
      const RowOrder from(input, true, false), to(output, false, true);
      return started(Type::ALLTOALL_BASE, group().all_to_all(from.tensor(), to.tensor(), limit(opts.timeout)), output,
                     {output}, to.copies());
    }
    return exchange(Type::ALLTOALL_BASE, dealt_rows(output, output_splits, getSize(), "output"),
                    dealt_rows(input, input_splits, getSize(), "input"), opts.timeout, {output});
  }

  Started alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& opts) override {
    return exchange(Type::ALLTOALL, outputs, inputs, opts.timeout, outputs);
  }

  Started send(Tensors& tensors, int destination, int tag) override {
    const at::Tensor& tensor = only(tensors, "send");
    if (coalesced_) {
      coalesced_->transfers.send(ProcessGroup::row_major(tensor, "send"), destination, tag_of(tag));
      return later(tensor);
    }
    return started(Type::SEND, group().send(tensor, destination, tag_of(tag), limit(::c10d::kUnsetTimeout)), tensor,
                   {tensor});
  }
  Started recv(Tensors& tensors, int source, int tag) override {
    const at::Tensor& tensor = only(tensors, "recv");
    if (coalesced_) {
      coalesced_->transfers.recv(ProcessGroup::row_major(tensor, "recv"), source, tag_of(tag));
      return later(tensor);
    }
    return started(Type::RECV, group().recv(tensor, source, tag_of(tag), limit(::c10d::kUnsetTimeout)), tensor,
                   {tensor});
  }

  /// Sends and receives are collected until endCoalescing(), and start together there; collectives start at once.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override {
    if (coalesced_) refuse("startCoalescing", "endCoalescing() first");
    coalesced_.emplace(Coalesced{Batch{group().group()}, {}, {}});
  }
  /// The returned Work covers the sends and receives, or else the last collective, which ends after all others.
  Started endCoalescing() override {
    if (!coalesced_) refuse("endCoalescing", "startCoalescing() first");
    Coalesced all = *std::exchange(coalesced_, std::nullopt);
    if (all.tensors.empty() && all.last) return all.last;
    return started(Type::COALESCED, all.transfers, all.tensors, ::c10d::kUnsetTimeout, all.tensors);
  }

  /// Synchronizes hosts. Given device_ids, first waits for the calling thread's current streams there.
  Started barrier(const ::c10d::BarrierOptions& opts) override {
    for (const std::int64_t index : opts.device_ids) {
      if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) break;
      const c10::Stream stream = current_stream(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index)));
      interruptible([stream] { stream.synchronize(); });
    }
    return started(Type::BARRIER, group().barrier(limit(opts.timeout)), at::Tensor{}, {});
  }
  /// Every barrier of libddp names the absent ranks.
  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool /*wait_for_all*/) override {
    const ddp::Work barrier = group().barrier(limit(opts.timeout));
    interruptible([barrier] { barrier.wait(); });
  }

  void setSequenceNumberForGroup() override {}  // numbers begin at 0 everywhere
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  /// @}

  /// Ends the group on all ranks that can be reached, and running operations with Error(aborted), whatever else holds a
  /// handle to it; later operations are refused. Thread-safe, also while others use this object.
  void abort() override {
    std::optional<ProcessGroup> mine = let_go();
    if (!mine) return;
    ddp::ProcessGroup& group = mine->group();
    const int own = group.global_ranks()[static_cast<std::size_t>(group.rank())];
    group.abort(Error{{.code = ErrorCode::aborted,
                       .attempted = "using group '" + group.name() + "'",
                       .cause = "rank " + std::to_string(own) + " aborted it: c10d's abort() was called",
                       .ranks = {own},
                       .hint = "look at that rank; then destroy the process group and make a new one"}});
  }
  /// Releases the group. Running operations end by their own deadlines; later operations are refused. Call it from the
  /// thread that coalesces.
  void shutdown() override {
    coalesced_.reset();
    let_go();
  }

 private:
  [[noreturn]] static void refuse(const char* what, const std::string& expected) {
    throw_invalid_argument(what, "c10d's arguments do not fit", "give " + expected);
  }

  /// Returns the caller's own handle: another thread may abort meanwhile.
  ProcessGroup group() {
    {
      const std::lock_guard lock(mutex_);
      if (group_) return *group_;
    }
    throw Error{{.code = ErrorCode::aborted,
                 .attempted = "using a c10d backend of libddp",
                 .cause = "it was shut down, or aborted"}};
  }

  /// @tparam Types c10d::OpType, whose names depend on PyTorch's version
  template <class Types>
  static constexpr Types coalesced_reduce_scatter() {
    if constexpr (requires { Types::REDUCE_SCATTER_TENSOR_COALESCED; }) {
      return Types::REDUCE_SCATTER_TENSOR_COALESCED;
    } else {
      return Types::_REDUCE_SCATTER_BASE;
    }
  }

  static const at::Tensor& only(const Tensors& tensors, const char* what) {
    if (tensors.size() != 1) refuse(what, "one tensor");
    return tensors[0];
  }
  Tensors& of_each_rank(Lists& lists, const char* what) const {
    if (lists.size() != 1 || lists[0].size() != static_cast<std::size_t>(getSize()))
      refuse(what, "a tensor for each rank");
    return lists[0];
  }
  Batch gathers(const Tensors& outputs, const Tensors& inputs, const char* what) {
    if (outputs.size() != inputs.size()) refuse(what, "as many outputs as inputs");
    Batch batch{group().group()};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      batch.all_gather(ProcessGroup::row_major(inputs[i], what), ProcessGroup::row_major(outputs[i], what));
    }
    return batch;
  }

  /// Part i of inputs becomes part rank() of rank i's outputs; parts may have any size.
  Started exchange(Type type, const Tensors& outputs, const Tensors& inputs, std::chrono::milliseconds timeout,
                   Tensors result) {
    const auto ranks = static_cast<std::size_t>(getSize());
    const auto own = static_cast<std::size_t>(getRank());
    if (outputs.size() != ranks || inputs.size() != ranks) refuse("alltoall", "a tensor, or a size, for each rank");
    C10dWork::Copy{outputs[own], inputs[own]}.make();
    Batch batch{group().group(), "all_to_all", type == Type::ALLTOALL_BASE ? elements_of_a_row(inputs, outputs) : 0};
    for (std::size_t i = 0; i < ranks; ++i) {
      if (i == own) continue;
      const int other = static_cast<int>(i);
      if (inputs[i].numel() > 0) batch.send(ProcessGroup::row_major(inputs[i], "alltoall"), other, kPieces);
      if (outputs[i].numel() > 0) batch.recv(ProcessGroup::row_major(outputs[i], "alltoall"), other, kPieces);
    }
    return started(type, batch, joined(outputs, inputs), timeout, std::move(result));
  }

  /// For parts of one tensor in messages; 0 if all are empty.
  static std::size_t elements_of_a_row(const Tensors& some, const Tensors& others) {
    for (const at::Tensor& part : joined(some, others)) {
      if (part.numel() > 0 && part.dim() > 0) {
        return ProcessGroup::row_major(part, "alltoall").numel() / static_cast<std::size_t>(part.size(0));
      }
    }
    return 0;
  }

  static constexpr std::uint32_t kPieces = 0x8000'0000;  ///< of an alltoall: c10d's own tags are not negative

  int peer(std::int64_t rank) const { return static_cast<int>(rank); }
  static std::uint32_t tag_of(int tag) { return static_cast<std::uint32_t>(tag); }
  Deadline limit(std::chrono::milliseconds timeout) const {
    return Deadline::after(timeout > std::chrono::milliseconds::zero() ? timeout : options_->timeout);
  }

  Started add_sparse(const at::Tensor& tensor, const ::c10d::AllreduceOptions& opts) {
    if (opts.reduceOp != ::c10d::ReduceOp::SUM) {
      throw_invalid_argument("combining sparse tensors", "libddp adds them only", "use SUM");
    }
    const auto sum = std::make_shared<SparseAllReduce>(group().group(), tensor, limit(opts.timeout));
    return started(Type::ALLREDUCE, sum->start(), tensor, {tensor}, {}, [sum] { sum->finish(); });
  }

  /// @param where its device runs the operation
  Started started(Type type, std::optional<ddp::Work> work, const at::Tensor& where, Tensors outputs,
                  Copies copies = {}, std::function<void()> last = {}) {
    ++sequence_;
    Started work_of_c10d = C10dWork::start(getRank(), type, std::move(work), cuda_device_of(where), std::move(outputs),
                                           std::move(copies), std::move(last));
    if (coalesced_) coalesced_->last = work_of_c10d;
    return work_of_c10d;
  }
  Started started(Type type, Batch batch, Tensors tensors, std::chrono::milliseconds timeout, Tensors outputs,
                  Copies copies = {}) {
    const at::Tensor where = tensors.empty() ? at::Tensor{} : tensors.front();
    std::optional<ddp::Work> work;
    if (batch.size() > 0) work = batch.start(ProcessGroup::keep(limit(timeout), std::move(tensors)));
    return started(type, std::move(work), where, std::move(outputs), std::move(copies));
  }

  struct Coalesced {
    Batch transfers;
    Tensors tensors;  ///< of the transfers
    Started last;     ///< of the collectives
  };
  /// A Work for a collected operation: there is nothing to wait for yet.
  Started later(const at::Tensor& tensor) {
    coalesced_->tensors.push_back(tensor);
    return C10dWork::start(getRank(), Type::COALESCED, std::nullopt, std::nullopt, {});
  }

  std::optional<ProcessGroup> let_go() {
    const std::lock_guard lock(mutex_);
    return std::exchange(group_, std::nullopt);
  }

  c10::intrusive_ptr<Options> options_;
  std::mutex mutex_;                   ///< guards the members below
  std::optional<ProcessGroup> group_;  ///< empty after shutdown()
  std::optional<Coalesced> coalesced_;
  std::uint64_t sequence_ = 0;
};

// c10d's Store as a libddp key-value store, so that ranks that torch.distributed has brought together form a group.

/// Works with any kind of store; needs a prefix of its own (c10d::PrefixStore). A failed fence names the absent ranks.
class C10dStore final : public KeyValueStore {
 public:
  /// Shares @p store among @p world_size ranks.
  C10dStore(c10::intrusive_ptr<::c10d::Store> store, int rank, int world_size)
      : store_(std::move(store)), rank_(rank), world_size_(world_size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string_view transport() const override { return "c10d store"; }

  void put(std::string_view key, std::span<const std::byte> value) override {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(value.data());
    store_->set(name(rank_, key), std::vector<std::uint8_t>(bytes, bytes + value.size()));
  }

  void fence(Deadline deadline) override {
    const std::string fence = "fence/" + std::to_string(++fences_) + "/";
    store_->set(fence + std::to_string(rank_), std::vector<std::uint8_t>{1});
    if (store_->add(fence + "arrived", 1) == world_size_) {
      store_->set(fence + "done", std::vector<std::uint8_t>{1});
      return;
    }
    try {
      store_->wait({fence + "done"}, milliseconds_until(deadline));
    } catch (const std::exception& problem) {
      std::vector<int> absent;
      for (int rank = 0; rank < world_size_; ++rank) {
        if (!store_->check({fence + std::to_string(rank)})) absent.push_back(rank);
      }
      if (absent.empty()) return;
      throw Error{
          {.code = ErrorCode::timeout,
           .attempted = "meeting over torch.distributed's store",
           .cause = std::to_string(absent.size()) + " of " + std::to_string(world_size_) +
                    " ranks did not come in time: " + first_line(problem.what()),
           .ranks = std::move(absent),
           .hint = "all ranks of a group make it; timeout= of init_process_group and new_group gives them more"}};
    }
  }

  Bytes get(int rank, std::string_view key, Deadline /*values are there at once or not at all*/) override {
    const std::string full = name(rank, key);
    if (!store_->check({full})) {
      throw Error{{.code = ErrorCode::not_found,
                   .attempted = "getting '" + full + "' from torch.distributed's store",
                   .cause = "the rank has put no such key",
                   .ranks = {rank}}};
    }
    return bytes_of(store_->get(full));
  }

  std::vector<Bytes> get_all(std::string_view key, Deadline deadline) override {
    std::vector<std::string> names;
    for (int rank = 0; rank < world_size_; ++rank) names.push_back(name(rank, key));
    if (!store_->hasExtendedApi() || !store_->check(names)) return KeyValueStore::get_all(key, deadline);
    std::vector<Bytes> values;
    for (const std::vector<std::uint8_t>& value : store_->multiGet(names)) values.push_back(bytes_of(value));
    return values;
  }

  void close() noexcept override {}

 private:
  static std::string name(int rank, std::string_view key) { return std::to_string(rank) + "/" + std::string(key); }
  static Bytes bytes_of(const std::vector<std::uint8_t>& value) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(value.data());
    return {bytes, bytes + value.size()};
  }
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }
  static std::chrono::milliseconds milliseconds_until(Deadline deadline) {
    // 0 would mean no limit
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()), std::chrono::milliseconds{1});
  }

  const c10::intrusive_ptr<::c10d::Store> store_;
  const int rank_;
  const int world_size_;
  unsigned fences_ = 0;
};

}  // namespace ddp::torch
