// The handwritten digits as this example uses them: read from a CSV file, checked, and handed out in batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace digits {

inline constexpr std::size_t kPixels = 64;   ///< an image is 8 x 8, row by row
inline constexpr std::size_t kClasses = 10;  ///< labels are 0..9
inline constexpr int kDarkest = 16;          ///< grey values are 0..16

/// Images and labels, in the order of the file.
struct Dataset {
  std::vector<std::uint8_t> pixels;  ///< kPixels values per image
  std::vector<std::uint8_t> labels;

  std::size_t size() const { return labels.size(); }
  std::span<const std::uint8_t> image(std::size_t sample) const {
    return std::span{pixels}.subspan(sample * kPixels, kPixels);
  }
};

/// Reads lines of 64 grey values and a label, separated by commas. @p name stands for the file in messages.
/// Throws ddp::Error(invalid_argument) naming the file, the line and what is wrong with it.
Dataset parse_digits(std::istream& lines, const std::string& name);

/// Reads a file; also throws ddp::Error: not_found when it does not exist, system when it cannot be read.
Dataset load_digits(const std::filesystem::path& file);

/// digits.csv beside the running program if there is one, else the one in the source tree that it was built from.
std::filesystem::path default_digits_file();

/// Which samples are learned from and which only measure the result. Disjoint; together all samples.
struct Split {
  std::vector<std::size_t> train;
  std::vector<std::size_t> test;
};

/// Takes @p test_count of @p count samples for testing, by a shuffle that depends on nothing but @p seed, so that every
/// rank makes the same split. Throws ddp::Error(invalid_argument) when that leaves nothing to train on.
Split split_train_test(std::size_t count, std::size_t test_count, std::uint64_t seed);

/// What a network gets: inputs scaled to [0, 1], size() rows of equal length.
template <class Scalar>
struct Batch {
  std::vector<Scalar> inputs;
  std::vector<std::uint8_t> labels;

  std::size_t size() const { return labels.size(); }
};

/// Copies the given samples; none is a valid number of samples.
template <class Scalar>
Batch<Scalar> make_batch(const Dataset& dataset, std::span<const std::size_t> samples) {
  Batch<Scalar> batch;
  batch.inputs.reserve(samples.size() * kPixels);
  batch.labels.reserve(samples.size());
  for (const std::size_t sample : samples) {
    for (const std::uint8_t grey : dataset.image(sample)) {
      batch.inputs.push_back(static_cast<Scalar>(grey) / Scalar{kDarkest});
    }
    batch.labels.push_back(dataset.labels[sample]);
  }
  return batch;
}

}  // namespace digits
