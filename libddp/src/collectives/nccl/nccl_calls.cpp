#include "collectives/nccl/nccl_calls.hpp"

#include <array>
#include <cstring>

namespace ddp::collectives::nccl {
namespace {

/// For components: complex numbers are two real ones.
ncclDataType_t type_of(DType dtype) {
  switch (component_of(dtype)) {
    case DType::float32: return ncclFloat32;
    case DType::float64: return ncclFloat64;
    case DType::float16: return ncclFloat16;
    case DType::bfloat16: return ncclBfloat16;
    case DType::int8: return ncclInt8;
    case DType::int32: return ncclInt32;
    case DType::int64: return ncclInt64;
    case DType::uint32: return ncclUint32;
    case DType::uint64: return ncclUint64;
    case DType::float8_e4m3fn: return ncclFloat8e4m3;
    case DType::float8_e5m2: return ncclFloat8e5m2;
    default: return ncclUint8;
  }
}

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce || kind == OperationKind::reduce_scatter;
}

/// What is only moved is bytes where NCCL may not know the type.
ncclDataType_t type_of(const Operation& operation) {
  return size_of(operation.dtype) == 1 && !reduces(operation.kind) ? ncclUint8 : type_of(operation.dtype);
}

/// Booleans are bytes of 0 and 1: OR is their maximum, AND their minimum.
ncclRedOp_t reduction_of(const Operation& operation) {
  const bool boolean = operation.dtype == DType::boolean;
  switch (operation.reduce_op) {
    case ReduceOp::sum: return boolean ? ncclMax : ncclSum;
    case ReduceOp::avg: return ncclAvg;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::product: return boolean ? ncclMin : ncclProd;
  }
  return ncclSum;
}

/// The calls of one operation.
class Caller {
 public:
  Caller(const NcclLibrary& library, NcclGroup& group, const CallPlace& place, const Operation& operation)
      : library_(library),
        group_(group),
        place_(place),
        operation_(operation),
        type_(type_of(operation)),
        components_(size_of(operation.dtype) / size_of(component_of(operation.dtype))) {}

  void call() {
    const void* const in = operation_.input.data();
    void* const out = operation_.output.data();
    const std::size_t count = operation_.count;
    ncclRedOp_t op = reduction_of(operation_);
    if (operation_.prescale != 1) op = scaled_sum();
    if (group_.failed()) return;
    call(in, out, count, op);
    if (op >= ncclNumOps) note(library_->red_op_destroy(op, place_.comm));
  }

 private:
  void call(const void* in, void* out, std::size_t count, ncclRedOp_t op) {
    switch (operation_.kind) {
      case OperationKind::all_reduce:
        return note(library_->all_reduce(in, out, count * components_, type_, op, place_.comm, place_.stream));
      case OperationKind::broadcast:
        return broadcast(place_.rank == operation_.root ? in : out, out, count, operation_.root);
      case OperationKind::reduce:
        return note(
            library_->reduce(in, out, count * components_, type_, op, operation_.root, place_.comm, place_.stream));
      case OperationKind::all_gather:
        return note(library_->all_gather(in, out, count * components_, type_, place_.comm, place_.stream));
      case OperationKind::all_gather_v: return all_gather_v();
      case OperationKind::gather:
        if (place_.rank == operation_.root) receive_parts();
        return send_own_part(operation_.root);
      case OperationKind::scatter: return scatter();
      case OperationKind::reduce_scatter:
        return note(library_->reduce_scatter(in, out, count * components_, type_, op, place_.comm, place_.stream));
      case OperationKind::all_to_all: return all_to_all();
      case OperationKind::barrier:
        return note(
            library_->all_reduce(place_.scratch, place_.scratch, 1, ncclUint8, ncclMax, place_.comm, place_.stream));
      case OperationKind::send: return send(in, count, operation_.root);
      case OperationKind::recv: return receive(out, count, operation_.root);
    }
  }

  /// In NCCL until it is destroyed, which may be before the group ends.
  ncclRedOp_t scaled_sum() {
    std::array<std::byte, sizeof(double)> scalar{};
    const auto put = [&](auto value) { std::memcpy(scalar.data(), &value, sizeof value); };
    const auto narrow = static_cast<float>(operation_.prescale);
    switch (type_) {
      case ncclFloat64: put(operation_.prescale); break;
      case ncclFloat16: put(to_half(narrow)); break;
      case ncclBfloat16: put(to_bfloat16(narrow)); break;
      case ncclFloat8e4m3: put(to_float8_e4m3(narrow)); break;
      case ncclFloat8e5m2: put(to_float8_e5m2(narrow)); break;
      default: put(narrow);
    }
    ncclRedOp_t op = ncclSum;
    note(library_->red_op_create_pre_mul_sum(&op, scalar.data(), type_, ncclScalarHostImmediate, place_.comm));
    return op;
  }

  void note(ncclResult_t result) { group_.note(result); }
  // counts are of elements
  void broadcast(const void* in, void* out, std::size_t count, int root) {
    note(library_->broadcast(in, out, count * components_, type_, root, place_.comm, place_.stream));
  }
  void send(const void* from, std::size_t count, int peer) {
    if (count > 0) note(library_->send(from, count * components_, type_, peer, place_.comm, place_.stream));
  }
  void receive(void* into, std::size_t count, int peer) {
    if (count > 0) note(library_->receive(into, count * components_, type_, peer, place_.comm, place_.stream));
  }
  /// Element @p first of a tensor.
  std::byte* at(const TensorView& tensor, std::size_t first) const {
    return static_cast<std::byte*>(tensor.data()) + first * size_of(operation_.dtype);
  }
  std::byte* part(const TensorView& tensor, int rank, std::size_t count) const {
    return at(tensor, static_cast<std::size_t>(rank) * count);
  }

  /// Every rank's part is broadcast from it.
  void all_gather_v() {
    std::size_t first = 0;
    for (int root = 0; root < place_.size; ++root) {
      const std::size_t count = operation_.counts[static_cast<std::size_t>(root)];
      std::byte* const into = at(operation_.output, first);
      if (count > 0) broadcast(root == place_.rank ? operation_.input.data() : into, into, count, root);
      first += count;
    }
  }
  void receive_parts() {
    for (int peer = 0; peer < place_.size; ++peer) {
      std::byte* const into = part(operation_.output, peer, operation_.count);
      if (peer == place_.rank && into == operation_.input.data()) continue;  // in place
      receive(into, operation_.count, peer);
    }
  }
  void send_own_part(int root) {
    if (root == place_.rank && part(operation_.output, root, operation_.count) == operation_.input.data()) return;
    send(operation_.input.data(), operation_.count, root);
  }
  void scatter() {
    const std::size_t count = operation_.count;
    const bool is_root = place_.rank == operation_.root;
    const bool in_place = is_root && part(operation_.input, place_.rank, count) == operation_.output.data();
    for (int peer = 0; is_root && peer < place_.size; ++peer) {
      if (peer != place_.rank || !in_place) send(part(operation_.input, peer, count), count, peer);
    }
    if (!in_place) receive(operation_.output.data(), count, operation_.root);
  }
  void all_to_all() {
    const std::size_t count = operation_.count / static_cast<std::size_t>(place_.size);
    for (int peer = 0; peer < place_.size; ++peer) {
      send(part(operation_.input, peer, count), count, peer);
      receive(part(operation_.output, peer, count), count, peer);
    }
  }

  const NcclLibrary& library_;
  NcclGroup& group_;
  const CallPlace& place_;
  const Operation& operation_;
  const ncclDataType_t type_;
  const std::size_t components_;  ///< of an element; NCCL counts these
};

}  // namespace

void call(const NcclLibrary& library, NcclGroup& group, const CallPlace& place, const Operation& operation) noexcept {
  Caller(library, group, place, operation).call();
}

}  // namespace ddp::collectives::nccl
