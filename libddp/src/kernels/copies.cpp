#include "kernels/copies.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "kernels/arguments.hpp"

namespace ddp::kernels {
namespace {

struct FormatFacts {
  std::string_view name;
  std::size_t bytes;
};
/// By Format.
constexpr std::array kFormats{
    FormatFacts{"float32", 4},  FormatFacts{"float64", 8},       FormatFacts{"float16", 2},
    FormatFacts{"bfloat16", 2}, FormatFacts{"float8_e4m3fn", 1}, FormatFacts{"float8_e5m2", 1},
    FormatFacts{"raw", 1},
};

struct Cast {
  Format from;
  Format to;
  Kernel kernel;
};
constexpr std::array kCasts{
    Cast{Format::float32, Format::float32, Kernel::copy_f32_f32},
    Cast{Format::float32, Format::float16, Kernel::copy_f32_f16},
    Cast{Format::float16, Format::float32, Kernel::copy_f16_f32},
    Cast{Format::float32, Format::bfloat16, Kernel::copy_f32_bf16},
    Cast{Format::bfloat16, Format::float32, Kernel::copy_bf16_f32},
    Cast{Format::float32, Format::float8_e4m3, Kernel::copy_f32_e4m3},
    Cast{Format::float8_e4m3, Format::float32, Kernel::copy_e4m3_f32},
    Cast{Format::float32, Format::float8_e5m2, Kernel::copy_f32_e5m2},
    Cast{Format::float8_e5m2, Format::float32, Kernel::copy_e5m2_f32},
    Cast{Format::float16, Format::float16, Kernel::copy_f16_f16},
    Cast{Format::bfloat16, Format::bfloat16, Kernel::copy_bf16_bf16},
    Cast{Format::float64, Format::float64, Kernel::copy_f64_f64},
    Cast{Format::raw, Format::raw, Kernel::copy_raw},
};

Kernel kernel_of(Format from, Format to, double scale) {
  const auto* const found =
      std::find_if(kCasts.begin(), kCasts.end(), [&](const Cast& cast) { return cast.from == from && cast.to == to; });
  if (found == kCasts.end()) {
    base::throw_invalid_argument(fmt::format("copying tensors from {} to {}", to_string(from), to_string(to)),
                                 "there is no such cast", "go by way of float32");
  }
  if (from == Format::raw && scale != 1)
    base::throw_invalid_argument("copying raw bytes", fmt::format("the scale is {}", scale), {});
  return found->kernel;
}

void check_alignment(const void* memory, std::size_t bytes, std::string_view format, std::size_t piece) {
  if (reinterpret_cast<std::uintptr_t>(memory) % bytes == 0) return;
  base::throw_invalid_argument(
      "copying tensors",
      fmt::format("the memory of tensor {} is at {}, which is not aligned to {}", piece, fmt::ptr(memory), format), {});
}

using Launcher = PieceLauncher<PieceArguments>;

/// @param from null: of fills.
void add_way(Launcher& launcher, const void* from, std::size_t from_bytes, void* to, std::size_t to_bytes,
             std::size_t count) {
  launcher.add(count, [&](PieceArguments& arguments, std::uint32_t piece, std::size_t first) {
    arguments.from[piece] = from == nullptr ? nullptr : static_cast<const std::byte*>(from) + first * from_bytes;
    arguments.to[piece] = static_cast<std::byte*>(to) + first * to_bytes;
  });
}

void launch_pieces(Executor& executor, Kernel kernel, std::span<const Piece> pieces, Format from, Format to,
                   double scale) {
  Launcher launcher(executor, kernel, from == Format::raw ? kChunkElements<true> : kChunkElements<false>);
  launcher.arguments().scale = scale;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    check_alignment(pieces[i].from, size_of(from), to_string(from), i);
    check_alignment(pieces[i].to, size_of(to), to_string(to), i);
  }
  for (const Piece& piece : pieces) {
    add_way(launcher, piece.from, size_of(from), piece.to, size_of(to), piece.count);
  }
  launcher.launch();
}

}  // namespace

std::string_view to_string(Format format) noexcept { return kFormats[static_cast<std::size_t>(format)].name; }
std::size_t size_of(Format format) noexcept { return kFormats[static_cast<std::size_t>(format)].bytes; }

void copy(Executor& executor, std::span<const Piece> pieces, Format from, Format to, double scale) {
  launch_pieces(executor, kernel_of(from, to, scale), pieces, from, to, scale);
}

void add(Executor& executor, std::span<const Piece> pieces) {
  launch_pieces(executor, Kernel::add, pieces, Format::float32, Format::float32, 1);
}

void copy_finite(Executor& executor, std::span<const Piece> pieces) {
  launch_pieces(executor, Kernel::copy_finite, pieces, Format::float32, Format::float32, 1);
}

void flatten(Executor& executor, std::span<const Part> tensors, Format of_tensors, void* flat, Format of_flat,
             double scale) {
  std::vector<Piece> pieces;
  pieces.reserve(tensors.size());
  auto* to = static_cast<std::byte*>(flat);
  for (const Part& tensor : tensors) {
    pieces.push_back({.from = tensor.data, .to = to, .count = tensor.count});
    to += tensor.count * size_of(of_flat);
  }
  copy(executor, pieces, of_tensors, of_flat, scale);
}

void unflatten(Executor& executor, const void* flat, Format of_flat, std::span<const Part> tensors, Format of_tensors,
               double scale) {
  std::vector<Piece> pieces;
  pieces.reserve(tensors.size());
  const auto* from = static_cast<const std::byte*>(flat);
  for (const Part& tensor : tensors) {
    pieces.push_back({.from = from, .to = tensor.data, .count = tensor.count});
    from += tensor.count * size_of(of_flat);
  }
  copy(executor, pieces, of_flat, of_tensors, scale);
}

void fill(Executor& executor, std::span<const Part> tensors, std::span<const std::byte> element) {
  Kernel kernel{};
  switch (element.size()) {
    case 1: kernel = Kernel::fill_1; break;
    case 2: kernel = Kernel::fill_2; break;
    case 4: kernel = Kernel::fill_4; break;
    case 8: kernel = Kernel::fill_8; break;
    default:
      base::throw_invalid_argument("filling tensors", fmt::format("an element has {} bytes", element.size()),
                                   "give 1, 2, 4 or 8 bytes");
  }
  Launcher launcher(executor, kernel, kChunkElements<false>);
  // the lowest bytes, wherever the processor has them: a word of the element's size is what the kernel stores
  std::uint64_t pattern = 0;
  for (std::size_t i = 0; i < element.size(); ++i) {
    const std::size_t shift = 8 * (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? i : element.size() - 1 - i);
    pattern |= static_cast<std::uint64_t>(element[i]) << shift;
  }
  launcher.arguments().pattern = pattern;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_alignment(tensors[i].data, element.size(), "its elements", i);
  }
  for (const Part& tensor : tensors) add_way(launcher, nullptr, 0, tensor.data, element.size(), tensor.count);
  launcher.launch();
}

namespace {

Kernel exact_kernel(Format format, Kernel float32, Kernel float64, Kernel float16, Kernel bfloat16) {
  switch (format) {
    case Format::float32: return float32;
    case Format::float64: return float64;
    case Format::float16: return float16;
    case Format::bfloat16: return bfloat16;
    default: break;
  }
  base::throw_invalid_argument("adding exactly", fmt::format("{} has no sums", to_string(format)),
                               "take float32, float64, float16 or bfloat16");
}

void launch_exact(Executor& executor, Kernel kernel, std::span<const ExactTensor> tensors, Format format,
                  const std::int64_t* terms) {
  PieceLauncher<ExactArguments> launcher(executor, kernel, kChunkElements<false>);
  launcher.arguments().terms = terms;
  for (const ExactTensor& tensor : tensors) {
    launcher.add(tensor.count, [&](ExactArguments& arguments, std::uint32_t piece, std::size_t first) {
      arguments.values[piece] = static_cast<std::byte*>(tensor.values) + first * size_of(format);
      arguments.sums[piece] = tensor.sums + 2 * first;
      arguments.broken[piece] = tensor.broken;
    });
  }
  launcher.launch();
}

}  // namespace

void add_exactly(Executor& executor, std::span<const ExactTensor> tensors, Format format) {
  const Kernel kernel =
      exact_kernel(format, Kernel::exact_add_f32, Kernel::exact_add_f64, Kernel::exact_add_f16, Kernel::exact_add_bf16);
  launch_exact(executor, kernel, tensors, format, nullptr);
}

void exact_means(Executor& executor, std::span<const ExactTensor> tensors, Format format, const std::int64_t* terms) {
  const Kernel kernel = exact_kernel(format, Kernel::exact_mean_f32, Kernel::exact_mean_f64, Kernel::exact_mean_f16,
                                     Kernel::exact_mean_bf16);
  launch_exact(executor, kernel, tensors, format, terms);
}

}  // namespace ddp::kernels
