// How libddp sees a tensor: a pointer, an element type and a shape. It never owns the memory.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddp {

/// Element types; to_string() returns PyTorch's names.
enum class DType : std::uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int8,
  int32,
  int64,
  uint8,
  boolean,
  uint32,
  uint64,
  float8_e4m3fn,
  float8_e5m2,
  complex64,   ///< a float32 for the real part and one for the imaginary
  complex128,  ///< the same of float64
};

/// Bytes of one element.
std::size_t size_of(DType dtype) noexcept;
/// "float32", "bfloat16", "bool", ...: the names PyTorch uses.
std::string_view to_string(DType dtype) noexcept;
/// The type of the real numbers that an element consists of: two in complex types, itself in others.
DType component_of(DType dtype) noexcept;

/// IEEE 754 binary16, for hosts without a native type.
struct Half {
  std::uint16_t bits;  ///< as stored
};
/// bfloat16: the upper half of a float32.
struct BFloat16 {
  std::uint16_t bits;  ///< as stored
};
/// The Open Compute Project's 8-bit format E4M3 (float8_e4m3fn), which has no infinity.
struct Float8E4M3 {
  std::uint8_t bits;  ///< as stored
};
/// The Open Compute Project's 8-bit format E5M2.
struct Float8E5M2 {
  std::uint8_t bits;  ///< as stored
};
/// @{
/// Conversions, rounding to nearest even. 8-bit formats saturate at their largest number; infinity becomes NaN in E4M3.
float to_float(Half value) noexcept;
float to_float(BFloat16 value) noexcept;
float to_float(Float8E4M3 value) noexcept;
float to_float(Float8E5M2 value) noexcept;
Half to_half(float value) noexcept;
BFloat16 to_bfloat16(float value) noexcept;
Float8E4M3 to_float8_e4m3(float value) noexcept;
Float8E5M2 to_float8_e5m2(float value) noexcept;
/// @}

/// `value` is the DType of the C++ type T; complex types have none.
template <class T>
struct DTypeOf;
/// @cond
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::float16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::int8;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::uint8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <>
struct DTypeOf<std::uint32_t> {
  static constexpr DType value = DType::uint32;
};
template <>
struct DTypeOf<std::uint64_t> {
  static constexpr DType value = DType::uint64;
};
template <>
struct DTypeOf<Float8E4M3> {
  static constexpr DType value = DType::float8_e4m3fn;
};
template <>
struct DTypeOf<Float8E5M2> {
  static constexpr DType value = DType::float8_e5m2;
};

/// @endcond

/// Kinds of devices that hold tensors.
enum class DeviceType : std::uint8_t { cpu, cuda };

/// A device that holds a tensor.
struct Device {
  DeviceType type = DeviceType::cpu;  ///< its kind
  int index = 0;                      ///< ordinal among the devices this process sees; 0 for the CPU
  friend bool operator==(const Device&, const Device&) = default;
  friend auto operator<=>(const Device&, const Device&) = default;  ///< by type, then index
};

/// A queue of a device in which work runs in order: a cudaStream_t. The caller owns it and keeps it alive.
struct Stream {
  Device device{};         ///< the device that it belongs to
  void* handle = nullptr;  ///< the cudaStream_t; null: the device's default stream
};

/// A dense, row-major (contiguous) tensor in the caller's memory. Value type, cheap to copy; up to 8 dimensions need no
/// heap. The caller keeps the memory alive, and untouched while an operation runs on it.
class TensorView {
 public:
  TensorView() = default;

  /// @param shape sizes of the dimensions; empty: a scalar. Throws Error(invalid_argument) for impossible sizes.
  TensorView(void* data, DType dtype, std::span<const std::int64_t> shape, Device device = {});
  /// The same with a shape in braces: `{64, 32}`.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = {})
      : TensorView(data, dtype, std::span<const std::int64_t>{shape.begin(), shape.size()}, device) {}

  /// A one-dimensional view of a contiguous range: vector, array, span. The view is mutable if the range is const, too:
  /// libddp writes only to the tensors that an operation documents as outputs.
  template <class T, std::size_t Extent>
  TensorView(std::span<T, Extent> elements)  // NOLINT(google-explicit-constructor): passing a span is the common call
      : TensorView(const_cast<std::remove_const_t<T>*>(elements.data()), DTypeOf<std::remove_const_t<T>>::value,
                   {static_cast<std::int64_t>(elements.size())}) {}
  /// The same for a vector.
  template <class T>
  TensorView(std::vector<T>& elements) : TensorView(std::span<T>{elements}) {}  // NOLINT(google-explicit-constructor)

  void* data() const noexcept { return data_; }       ///< first element; null for an empty view
  DType dtype() const noexcept { return dtype_; }     ///< type of the elements
  Device device() const noexcept { return device_; }  ///< where the memory is
  /// Valid as long as this view.
  std::span<const std::int64_t> shape() const noexcept { return {many_ ? many_.get() : few_.data(), dimensions_}; }
  std::size_t numel() const noexcept { return numel_; }  ///< number of elements
  std::size_t size_bytes() const noexcept {
    return numel_ * size_of(dtype_);
  }  ///< numel() times the size of an element

  /// Elements [first, first + count) as a one-dimensional view. Throws Error(invalid_argument) beyond numel().
  TensorView slice(std::size_t first, std::size_t count) const;

  /// "float32[64, 32]".
  std::string description() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::float32;
  Device device_;
  std::size_t numel_ = 0;
  std::size_t dimensions_ = 1;
  std::array<std::int64_t, 8> few_{};           ///< the shape, if it fits
  std::shared_ptr<const std::int64_t[]> many_;  ///< the shape, if it does not fit
};

}  // namespace ddp
