#include <ddp/tensor_view.hpp>

#include <bit>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

namespace ddp {

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::float64:
    case DType::int64: return 8;
    case DType::float32:
    case DType::int32: return 4;
    case DType::float16:
    case DType::bfloat16: return 2;
    case DType::int8:
    case DType::uint8:
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
  }
  return "unknown";
}

float to_float(BFloat16 value) noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U); }

BFloat16 to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((bits >> 16U) | 0x40U)};  // NaN stays NaN
  // adding 0x7fff, or 0x8000 when the kept part is odd, carries into it exactly when round-to-nearest-even rounds up
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U)};
}

float to_float(Half value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (value.bits >> 10U) & 0x1fU;
  const std::uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13U));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
  // zero or subnormal: mantissa * 2^-24, exact in float
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

Half to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint16_t>(sign | 0x7e00U)};  // NaN
  if (magnitude >= 0x477ff000U)
    return {static_cast<std::uint16_t>(sign | 0x7c00U)};  // rounds to infinity from 65520 on
  if (magnitude < 0x38800000U) {
    // below 2^-14 the result is subnormal, a multiple of 2^-24; adding 0.5 leaves it, rounded to nearest even, in the
    // low bits of the float's mantissa, because the last place of 0.5 is 2^-24
    const auto shifted = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F);
    return {static_cast<std::uint16_t>(sign | (shifted - std::bit_cast<std::uint32_t>(0.5F)))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13U) & 1U);
  return {static_cast<std::uint16_t>(sign | ((rounded >> 13U) - (112U << 10U)))};
}

TensorView::TensorView(void* data, DType dtype, std::vector<std::int64_t> shape, Device device)
    : data_(data), dtype_(dtype), device_(device), shape_(std::move(shape)), numel_(1) {
  for (const std::int64_t size : shape_) {
    std::size_t product = 0;
    if (size < 0 || __builtin_mul_overflow(numel_, static_cast<std::size_t>(size), &product)) {
      throw Error{{.code = ErrorCode::invalid_argument,
                   .attempted = "describing a tensor",
                   .cause = fmt::format("the shape [{}] has no size", fmt::join(shape_, ", ")),
                   .native = {},
                   .ranks = {},
                   .hint = "every dimension must be 0 or more, and their product must fit into memory"}};
    }
    numel_ = product;
  }
  if (data_ == nullptr && numel_ > 0) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "describing a tensor",
                 .cause = fmt::format("a null pointer for {} elements", numel_),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
}

TensorView TensorView::slice(std::size_t first, std::size_t count) const {
  if (first > numel_ || count > numel_ - first) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = fmt::format("taking a slice of {}", description()),
                 .cause = fmt::format("elements {} to {} are not all in it", first, first + count),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  return {
      static_cast<std::byte*>(data_) + first * size_of(dtype_), dtype_, {static_cast<std::int64_t>(count)}, device_};
}

std::string TensorView::description() const {
  return fmt::format("{}[{}]", to_string(dtype_), fmt::join(shape_, ", "));
}

}  // namespace ddp
