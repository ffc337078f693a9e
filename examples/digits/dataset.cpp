#include "digits/dataset.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <istream>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <ddp/error.hpp>

#include "digits/sample_order.hpp"

namespace digits {
namespace {

[[noreturn]] void refuse(const std::string& name, std::size_t line_number, std::string_view what) {
  throw ddp::Error{{.code = ddp::ErrorCode::invalid_argument,
                    .attempted = "reading digits from " + name,
                    .cause = fmt::format("line {}: {}", line_number, what),
                    .hint = fmt::format("every line needs {} grey values 0..{} and a label 0..{}, separated by commas",
                                        kPixels, kDarkest, kClasses - 1)}};
}

/// A digits file that cannot be opened or read, with the reason in errno.
[[noreturn]] void refuse_file(const std::filesystem::path& file, int number) {
  const char* native = strerrorname_np(number);
  throw ddp::Error{
      {.code = number == ENOENT ? ddp::ErrorCode::not_found : ddp::ErrorCode::system,
       .attempted = "reading digits from " + file.string(),
       .cause = std::generic_category().message(number),
       .native = fmt::format("{} ({})", native != nullptr ? native : "errno", number),
       .hint = "name a file that every node can read with --data; libddp ships examples/digits/digits.csv"}};
}

/// A whole number in [0, largest]; nothing else, not even a blank, is accepted.
int parse_field(std::string_view field, int largest, const std::string& name, std::size_t line_number,
                std::size_t field_number) {
  int value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc{} || end != field.data() + field.size() || value < 0 || value > largest) {
    refuse(name, line_number,
           fmt::format("field {} is '{}', which is not a whole number from 0 to {}", field_number, field, largest));
  }
  return value;
}

}  // namespace

Dataset parse_digits(std::istream& lines, const std::string& name) {
  Dataset dataset;
  std::string line;
  std::size_t line_number = 0;
  while (std::getline(lines, line)) {
    ++line_number;
    std::string_view rest = line;
    if (rest.ends_with('\r')) rest.remove_suffix(1);

    std::size_t fields = 1;
    for (const char letter : rest) fields += letter == ',' ? 1 : 0;
    if (fields != kPixels + 1) {
      refuse(name, line_number,
             rest.empty() ? "is empty" : fmt::format("has {} fields instead of {}", fields, kPixels + 1));
    }
    for (std::size_t field = 0; field < kPixels; ++field) {
      const std::size_t comma = rest.find(',');
      const int grey = parse_field(rest.substr(0, comma), kDarkest, name, line_number, field + 1);
      dataset.pixels.push_back(static_cast<std::uint8_t>(grey));
      rest.remove_prefix(comma + 1);
    }
    const int label = parse_field(rest, static_cast<int>(kClasses) - 1, name, line_number, kPixels + 1);
    dataset.labels.push_back(static_cast<std::uint8_t>(label));
  }
  if (dataset.size() == 0) refuse(name, 1, "the file has no samples");
  return dataset;
}

Dataset load_digits(const std::filesystem::path& file) {
  // A folder can be opened for reading and then fails in a way that streams report as an empty file.
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) refuse_file(file, EISDIR);
  errno = 0;
  std::ifstream lines{file};
  if (!lines) refuse_file(file, errno != 0 ? errno : EIO);
  Dataset dataset = parse_digits(lines, file.string());
  if (lines.bad()) refuse_file(file, EIO);
  return dataset;
}

std::filesystem::path default_digits_file() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path beside = program.parent_path() / "digits.csv";
    if (std::filesystem::exists(beside, error)) return beside;
  }
  return DIGITS_DATA_FILE;
}

Split split_train_test(std::size_t count, std::size_t test_count, std::uint64_t seed) {
  if (test_count >= count) {
    throw ddp::Error{{.code = ddp::ErrorCode::invalid_argument,
                      .attempted = "splitting the digits into training and test samples",
                      .cause = fmt::format("{} of {} samples are wanted for testing", test_count, count),
                      .hint = "is the data file complete? The one that libddp ships has 1797 lines"}};
  }
  const std::vector<std::size_t> order = shuffled_order(count, seed, 0);
  const auto border = order.begin() + static_cast<std::ptrdiff_t>(count - test_count);
  return {.train = {order.begin(), border}, .test = {border, order.end()}};
}

}  // namespace digits
