// Python objects as tensors, without a copy: by the buffer protocol (numpy, array, memoryview) or DLPack (PyTorch, JAX,
// CuPy).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ddp/broadcast_state.hpp>
#include <ddp/process_group.hpp>
#include <ddp/tensor_view.hpp>

#include "completion_queue.hpp"

namespace ddp::python {

enum class Access { read, write };

/// The tensors of one operation. Used with the GIL; the owner that it makes may go anywhere.
class TensorArguments {
 public:
  /// @param stream the cudaStream_t that the caller gives, as an integer; nothing: the device's default stream.
  explicit TensorArguments(std::optional<std::uintptr_t> stream = {}) : stream_(stream) {}
  TensorArguments& operator=(TensorArguments&&) = delete;
  ~TensorArguments() { release(held_); }

  /// The memory of @p object. Throws Error(invalid_argument) for what is no dense tensor of a known type, or cannot be
  /// written. @param name of the argument, for messages. None gives an empty view if @p optional.
  TensorView add(nanobind::handle object, const char* name, Access access, bool optional = false);

  /// The memory of one of PyTorch's tensors, which stays although the tensor gets another: with less work than add(),
  /// and no call that compiles code or waits. Nothing for what is not on the CPU, not dense, not of a known type, or
  /// of a class derived from PyTorch's; also, if @p fixed, where the tensor could be resized.
  std::optional<TensorView> add_plain(nanobind::handle tensor, bool fixed);

  /// Lets PyTorch refuse to resize the memory of @p tensor, if it is PyTorch's, until the owner goes; without effect
  /// while `storage_functions` are missing.
  void fix(nanobind::handle tensor);

  /// Keeps all that was added alive; nothing is left here.
  std::shared_ptr<const void> owner() { return held_ == nullptr ? nullptr : hold(std::exchange(held_, nullptr)); }

  /// Of the first tensor on a CUDA device.
  std::optional<Stream> stream() const;

 private:
  TensorView add_buffer(nanobind::handle object, const char* name, Access access, HeldObject& held);
  TensorView add_dlpack(nanobind::handle object, const char* name, Access access, HeldObject& held);

  std::optional<std::uintptr_t> stream_;
  std::optional<Device> device_;
  HeldObject* held_ = nullptr;
};

}  // namespace ddp::python

namespace ddp::python::dlpack {

// DLPack's binary interface, version 1.1 (github.com/dmlc/dlpack, include/dlpack/dlpack.h): what is read of it.

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBFloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3 = 10,
  kFloat8E5M2 = 12
};

struct Device {
  std::int32_t type;
  std::int32_t index;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null for a dense tensor
  std::uint64_t byte_offset;
};

/// In capsules of the name "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

constexpr std::uint64_t kReadOnly = 1;

/// In capsules of the name "dltensor_versioned".
struct VersionedTensor {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};

/// Behind `__dlpack_c_exchange_api__` of a type, in a capsule of the name "dlpack_exchange_api", since DLPack 1.2: the
/// same without a call of Python.
struct ExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  ExchangeApi* previous;
  void* allocate;
  int (*export_tensor)(void* object, VersionedTensor** made);
  void* import_tensor;
  int (*describe)(void* object, Tensor* made);  ///< may be null; what it fills in is the object's
};

}  // namespace ddp::python::dlpack

namespace ddp::python {

// Python's mappings from names to tensors, as state_dict() gives them.

/// What type checkers are told of them.
#define DDP_NAMED "collections.abc.Mapping[str, libddp._types.Tensor]"

/// The tensors of @p mapping in its order; @p tensors keeps them. Throws Error(invalid_argument) that names the entry.
std::vector<NamedTensor> named_tensors(nanobind::handle mapping, TensorArguments& tensors, Access access);

/// The bytes of @p object, a str or os.PathLike. Throws TypeError.
std::string path_of(nanobind::handle object);

}  // namespace ddp::python
