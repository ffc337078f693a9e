// The text file of a recorded order: a line for each parameter, the order, the counts, and a digest of all before it.
#include <ddp/recorded_order.hpp>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"

namespace ddp {
namespace {

constexpr std::string_view kFirstLine = "ddp-recorded-order 1\n";
constexpr std::string_view kParameter = "parameter ";
constexpr std::string_view kOrder = "order";
constexpr std::string_view kCounts = "counts";

std::string digest_line(std::string_view text) {
  return fmt::format("digest {:016x}\n", base::Fnv1a().add(text).value());
}

/// Takes a file apart, line by line.
class OrderReader {
 public:
  OrderReader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  /// Leaves what stands before the digest.
  void check_digest() {
    const auto last = text_.size() < 2 ? std::string_view::npos : text_.rfind('\n', text_.size() - 2);
    if (last == std::string_view::npos) fail("it has no digest");
    const std::string_view before = text_.substr(0, last + 1);
    if (text_.substr(last + 1) != digest_line(before)) fail("its digest is not that of its text");
    text_ = before;
  }
  bool take(std::string_view literal) {
    if (!text_.starts_with(literal)) return false;
    text_.remove_prefix(literal.size());
    return true;
  }
  std::string_view line() {
    const auto end = text_.find('\n');
    if (end == std::string_view::npos) fail("a line has no end");
    const std::string_view found = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return found;
  }
  /// Numbers from 0 to @p largest, a space before each.
  template <class Int>
  std::vector<Int> numbers(std::string_view word, Int largest) {
    if (!take(word)) fail(fmt::format("the line '{}' is missing", word));
    std::vector<Int> found;
    for (std::string_view rest = line(); !rest.empty();) {
      Int value{};
      const char* const end_of_line = rest.data() + rest.size();
      const auto [end, status] = std::from_chars(rest.data() + 1, end_of_line, value);
      if (rest[0] != ' ' || status != std::errc{} || value < 0 || value > largest) fail("a number is wrong");
      found.push_back(value);
      rest = {end, static_cast<std::size_t>(end_of_line - end)};
    }
    return found;
  }
  bool at_end() const { return text_.empty(); }
  [[noreturn]] void fail(std::string cause) const {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading the recorded order '{}'", path_),
                 .cause = std::move(cause),
                 .hint = "remove the file, and record the order anew"}};
  }

 private:
  std::string_view text_;
  const std::string& path_;
};

std::string read_file(const std::string& path) {
  const std::string attempted = fmt::format("reading the recorded order '{}'", path);
  std::error_code status;
  const auto kind = std::filesystem::status(path, status).type();
  if (kind == std::filesystem::file_type::not_found) {
    throw Error{{.code = ErrorCode::not_found,
                 .attempted = attempted,
                 .cause = "there is no such file",
                 .hint = "a run without one records it"}};
  }
  if (kind != std::filesystem::file_type::regular) {
    throw base::system_error(attempted, status ? status.value() : EINVAL, "give the path of a file");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw base::system_error(attempted, errno == 0 ? EIO : errno, "may you read it?");
  return text;
}

}  // namespace

void RecordedOrder::save(const std::string& path) const {
  std::string text(kFirstLine);
  for (const std::string& parameter : parameters) {
    if (parameter.find('\n') != std::string::npos) {
      base::throw_invalid_argument(fmt::format("saving the recorded order '{}'", path),
                                   fmt::format("the name of parameter {} has a line break", parameter),
                                   "give parameters other names");
    }
    text += fmt::format("{}{}\n", kParameter, parameter);
  }
  const auto add = [&](std::string_view word, const auto& numbers) {
    text += word;
    for (const auto number : numbers) text += fmt::format(" {}", number);
    text += '\n';
  };
  add(kOrder, order);
  add(kCounts, counts);
  base::NewFile file(path, 0666);
  file.write(text);
  file.write(digest_line(text));
  file.commit();
}

RecordedOrder RecordedOrder::load(const std::string& path) {
  const std::string text = read_file(path);
  OrderReader reader(text, path);
  reader.check_digest();
  if (!reader.take(kFirstLine)) reader.fail("it is of another version of libddp");
  RecordedOrder recorded{.counts = {}};
  while (reader.take(kParameter)) recorded.parameters.emplace_back(reader.line());
  if (recorded.parameters.empty()) reader.fail("it names no parameters");
  recorded.order = reader.numbers<std::size_t>(kOrder, recorded.parameters.size() - 1);
  recorded.counts = reader.numbers<std::int64_t>(kCounts, UINT32_MAX);
  if (!reader.at_end()) reader.fail("it has too many lines");
  return recorded;
}

}  // namespace ddp
