#include <ddp/tensor_view.hpp>

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "collectives/half_conversion.hpp"

namespace ddp {

using collectives::narrow_to_float;

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::complex128: return 16;
    case DType::complex64:
    case DType::float64:
    case DType::int64:
    case DType::uint64: return 8;
    case DType::float32:
    case DType::int32:
    case DType::uint32: return 4;
    case DType::float16:
    case DType::bfloat16: return 2;
    case DType::int8:
    case DType::uint8:
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
    case DType::boolean: return 1;
  }
  return 0;
}

std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::float64: return "float64";
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
    case DType::int8: return "int8";
    case DType::int32: return "int32";
    case DType::int64: return "int64";
    case DType::uint8: return "uint8";
    case DType::boolean: return "bool";
    case DType::uint32: return "uint32";
    case DType::uint64: return "uint64";
    case DType::float8_e4m3fn: return "float8_e4m3fn";
    case DType::float8_e5m2: return "float8_e5m2";
    case DType::complex64: return "complex64";
    case DType::complex128: return "complex128";
  }
  return "unknown";
}

DType component_of(DType dtype) noexcept {
  if (dtype == DType::complex64) return DType::float32;
  return dtype == DType::complex128 ? DType::float64 : dtype;
}

float to_float(BFloat16 value) noexcept { return narrow_to_float(value); }
BFloat16 to_bfloat16(float value) noexcept { return collectives::float_to_bfloat16(value); }
float to_float(Half value) noexcept { return narrow_to_float(value); }
Half to_half(float value) noexcept { return collectives::float_to_half(value); }
float to_float(Float8E4M3 value) noexcept { return narrow_to_float(value); }
Float8E4M3 to_float8_e4m3(float value) noexcept { return collectives::float_to_e4m3(value); }
float to_float(Float8E5M2 value) noexcept { return narrow_to_float(value); }
Float8E5M2 to_float8_e5m2(float value) noexcept { return collectives::float_to_e5m2(value); }

TensorView::TensorView(void* data, DType dtype, std::span<const std::int64_t> shape, Device device)
    : data_(data), dtype_(dtype), device_(device), numel_(1), dimensions_(shape.size()) {
  if (shape.size() <= few_.size()) {
    std::copy(shape.begin(), shape.end(), few_.begin());
  } else {
    const std::shared_ptr<std::int64_t[]> many(new std::int64_t[shape.size()]);
    std::copy(shape.begin(), shape.end(), many.get());
    many_ = many;
  }
  for (const std::int64_t size : shape) {
    std::size_t product = 0;
    if (size < 0 || __builtin_mul_overflow(numel_, static_cast<std::size_t>(size), &product)) {
      throw Error{{.code = ErrorCode::invalid_argument,
                   .attempted = "describing a tensor",
                   .cause = fmt::format("the shape [{}] has no size", fmt::join(shape, ", ")),
                   .hint = "every dimension must be 0 or more, and their product must fit into memory"}};
    }
    numel_ = product;
  }
  if (numel_ > std::numeric_limits<std::size_t>::max() / size_of(dtype_)) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "describing a tensor",
                 .cause = fmt::format("{} has more bytes than can be addressed", description())}};
  }
  if (data_ == nullptr && numel_ > 0) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "describing a tensor",
                 .cause = fmt::format("a null pointer for {} elements", numel_)}};
  }
}

TensorView TensorView::slice(std::size_t first, std::size_t count) const {
  if (first > numel_ || count > numel_ - first) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = fmt::format("taking a slice of {}", description()),
                 .cause = fmt::format("elements {} to {} are not all in it", first, first + count)}};
  }
  return {
      static_cast<std::byte*>(data_) + first * size_of(dtype_), dtype_, {static_cast<std::int64_t>(count)}, device_};
}

std::string TensorView::description() const {
  return fmt::format("{}[{}]", to_string(dtype_), fmt::join(shape(), ", "));
}

}  // namespace ddp
