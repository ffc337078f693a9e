// libtorch's tensors as libddp sees them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <ddp/error.hpp>
#include <ddp/tensor_view.hpp>

#include <ddp/torch/device_streams.hpp>

#if defined(__GLIBCXX__) && !_GLIBCXX_USE_CXX11_ABI
#error \
    "libddp has the C++11 ABI of libstdc++: take a libtorch that has it, too (PyTorch 2.6 and later, or the cxx11-abi archive)"
#endif

namespace ddp::torch {

[[noreturn]] inline void throw_invalid_argument(std::string attempted, std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = std::move(attempted),
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

/// libddp's element type for a type of real numbers; nothing if libddp does not support it.
inline std::optional<DType> dtype_of(at::ScalarType type) noexcept {
  switch (type) {
    case at::kFloat: return DType::float32;
    case at::kDouble: return DType::float64;
    case at::kHalf: return DType::float16;
    case at::kBFloat16: return DType::bfloat16;
    case at::kChar: return DType::int8;
    case at::kInt: return DType::int32;
    case at::kLong: return DType::int64;
    case at::kByte: return DType::uint8;
    case at::kBool: return DType::boolean;
    case at::ScalarType::UInt32: return DType::uint32;
    case at::ScalarType::UInt64: return DType::uint64;
    case at::ScalarType::Float8_e4m3fn: return DType::float8_e4m3fn;
    case at::ScalarType::Float8_e5m2: return DType::float8_e5m2;
    default: return std::nullopt;
  }
}

/// The reverse: libtorch's element type.
inline at::ScalarType scalar_type_of(DType type) noexcept {
  switch (type) {
    case DType::float32: return at::kFloat;
    case DType::float64: return at::kDouble;
    case DType::float16: return at::kHalf;
    case DType::bfloat16: return at::kBFloat16;
    case DType::int8: return at::kChar;
    case DType::int32: return at::kInt;
    case DType::int64: return at::kLong;
    case DType::uint8: return at::kByte;
    case DType::boolean: return at::kBool;
    case DType::uint32: return at::ScalarType::UInt32;
    case DType::uint64: return at::ScalarType::UInt64;
    case DType::float8_e4m3fn: return at::ScalarType::Float8_e4m3fn;
    case DType::float8_e5m2: return at::ScalarType::Float8_e5m2;
    case DType::complex64: return at::kComplexFloat;
    case DType::complex128: return at::kComplexDouble;
  }
  return at::kByte;
}

/// The element type of a complex number's two parts; nothing for other types.
inline std::optional<DType> part_of_complex(at::ScalarType type) noexcept {
  switch (type) {
    case at::kComplexFloat: return DType::float32;
    case at::kComplexDouble: return DType::float64;
    case at::kComplexHalf: return DType::float16;
    default: return std::nullopt;
  }
}

/// "Float[3, 4] on cpu" and the like, for messages.
inline std::string description_of(const at::Tensor& tensor) {
  std::string text = at::toString(tensor.scalar_type());
  text += "[";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) text += (i > 0 ? ", " : "") + std::to_string(tensor.size(i));
  return text + "] on " + tensor.device().str();
}

/// The memory of a tensor without gaps, on the host or a CUDA device, in memory order: complex numbers appear as real
/// ones with one more dimension. Valid as long as the tensor's storage. Throws Error(invalid_argument) for
/// other tensors.
/// @param what is done, for the message: a text, or a function that makes one, so that the text costs no time
template <class What>
TensorView memory_of(const at::Tensor& tensor, const What& what) {
  const auto refuse = [&](const char* cause, const char* hint) {
    std::string attempted;
    if constexpr (std::is_invocable_v<const What&>) {
      attempted = what();
    } else {
      attempted = what;
    }
    throw_invalid_argument(std::move(attempted), "a tensor " + description_of(tensor) + " " + cause, hint);
  };
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    refuse("is neither in the memory of the host nor on a CUDA device", "move it to one of them");
  }
  if (tensor.layout() != at::kStrided) refuse("is not dense", "convert it with to_dense()");
  if (!tensor.is_non_overlapping_and_dense()) refuse("has gaps or overlaps in memory", "use its contiguous()");
  if (tensor.is_conj() || tensor.is_neg())
    refuse("is a lazy conjugate or negative", "use its resolve_conj().resolve_neg()");
  if (const auto dtype = dtype_of(tensor.scalar_type())) {
    return {tensor.data_ptr(), *dtype, std::span<const std::int64_t>{tensor.sizes().data(), tensor.sizes().size()},
            device_of(tensor.device())};
  }
  if (const auto part = part_of_complex(tensor.scalar_type())) {
    std::vector<std::int64_t> shape = tensor.sizes().vec();
    shape.push_back(2);
    return {tensor.data_ptr(), *part, shape, device_of(tensor.device())};
  }
  refuse("has an element type that libddp does not know", "convert it");
  return {};
}

/// The same for data that is only moved: elements of types that libddp does not support become bytes.
inline TensorView bytes_of(const at::Tensor& tensor, const std::string& what) {
  const at::ScalarType type = tensor.scalar_type();
  if (dtype_of(type) || part_of_complex(type)) return memory_of(tensor, what);
  const at::Tensor bytes = tensor.is_contiguous() ? tensor.view(at::kByte) : tensor;
  return memory_of(bytes, what);
}

/// An uninitialized dense tensor with the memory layout of @p parameter.
inline at::Tensor laid_out_like(const at::Tensor& parameter) {
  return at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().requires_grad(false));
}

/// Writes a gradient from a bucket, of the same or another element type, to @p target on the same device, which has its
/// parameter's layout.
inline void copy_elements(const TensorView& from, const at::Tensor& target) {
  const auto flat = [&](void* data, at::ScalarType type) {
    return at::for_blob(data, {static_cast<std::int64_t>(from.numel())})
        .options(at::TensorOptions(target.device()).dtype(type))
        .target_device(target.device())
        .make_tensor();
  };
  const auto part = part_of_complex(target.scalar_type());
  const at::ScalarType type = part ? scalar_type_of(*part) : target.scalar_type();
  flat(target.data_ptr(), type).copy_(flat(from.data(), scalar_type_of(from.dtype())));
}

/// Whether a tensor has a parameter's shape and memory layout, as gradients do: the order of its elements in memory is
/// then the same on all ranks.
inline bool lies_like(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (tensor.layout() != at::kStrided || tensor.sizes() != parameter.sizes()) return false;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) != parameter.stride(i)) return false;
  }
  return tensor.is_non_overlapping_and_dense();
}

}  // namespace ddp::torch
