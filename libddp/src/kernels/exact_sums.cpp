#include "kernels/exact_sums.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "kernels/arguments.hpp"
#include "kernels/piece_launcher.hpp"

namespace ddp::kernels {
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
