#include "diagnostics/hang/torch_pickle.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::diagnostics {
namespace {

constexpr std::size_t kMostJsonBytes = std::size_t{32} << 20U;
// Each level copies what is in it.
constexpr std::size_t kMostDepth = 16;
constexpr std::size_t kMostValues = std::size_t{1} << 20U;
// Stack traces are far larger than all the rest.
constexpr std::string_view kLeftOut = "\"frames\"";

// Python's Lib/pickletools.py has all opcodes; those of data are what torch/csrc/jit/serialization/pickler.cpp writes.
enum Opcode : unsigned char {
  kProtocol = 0x80,
  kStop = '.',
  kMark = '(',
  kNone = 'N',
  kTrue = 0x88,
  kFalse = 0x89,
  kInt32 = 'J',
  kUint8 = 'K',
  kUint16 = 'M',
  kLong = 0x8a,
  kDouble = 'G',
  kString = 'X',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kAppend = 'a',
  kAppends = 'e',
  kSetItem = 's',
  kSetItems = 'u',
  kPut8 = 'q',
  kPut32 = 'r',
  kGet8 = 'h',
  kGet32 = 'j',
};

[[noreturn]] void refuse_pickle(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading a dump of PyTorch's flight recorder",
               .cause = std::move(cause)}};
}

/// Pickle's stack machine, whose values are JSON.
class PickleReader {
 public:
  explicit PickleReader(std::string_view pickle) : rest_(pickle) {}

  std::string read() {
    while (!step(static_cast<unsigned char>(take(1).front()))) continue;
    if (stack_.size() != 1 || !marks_.empty()) refuse_pickle("its pickle is malformed");
    return std::move(stack_.back());
  }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) refuse_pickle("its pickle is incomplete");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::uint64_t little_endian(std::string_view bytes) {
    std::uint64_t number = 0;
    for (std::size_t i = bytes.size(); i > 0; --i) number = number << 8U | static_cast<unsigned char>(bytes[i - 1]);
    return number;
  }
  std::uint64_t number(std::size_t bytes) { return little_endian(take(bytes)); }

  void push(std::string json) {
    spend(json.size());
    if (stack_.size() >= kMostValues) refuse_pickle("it is too large");
    stack_.push_back(std::move(json));
  }
  void spend(std::size_t bytes) {
    written_ += bytes;
    if (written_ > kMostDepth * kMostJsonBytes || bytes > kMostJsonBytes) refuse_pickle("it is too large");
  }
  std::string pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse_pickle("its pickle is malformed");
    std::string json = std::move(stack_.back());
    stack_.pop_back();
    return json;
  }
  std::vector<std::string> pop_to_mark() {
    if (marks_.empty()) refuse_pickle("its pickle is malformed");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<std::string> items(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  void push_string(std::string_view text) {
    std::string json = "\"";
    for (const char letter : text) {
      if (letter == '"' || letter == '\\') json += '\\';
      json += letter < ' ' || letter >= 0x7f ? '?' : letter;
    }
    push(json + '"');
  }
  void push_long(std::string_view bytes) {
    if (bytes.size() > 8) refuse_pickle("a number in it is out of range");
    std::uint64_t value = little_endian(bytes);
    const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
    if (negative && bytes.size() < 8) value |= ~std::uint64_t{0} << (8 * bytes.size());
    push(std::to_string(static_cast<std::int64_t>(value)));
  }
  void push_double(std::string_view bytes) {
    std::uint64_t bits = 0;
    for (const char byte : bytes) bits = bits << 8U | static_cast<unsigned char>(byte);
    const auto value = std::bit_cast<double>(bits);
    push(std::isfinite(value) ? fmt::format("{}", value) : "null");
  }

  /// Adds to the list or dictionary on the stack.
  void extend(char open, char close, const std::vector<std::string>& items) {
    std::string whole = pop();
    if (whole.size() < 2 || whole.front() != open) refuse_pickle("its pickle is malformed");
    whole.pop_back();
    const bool pairs = open == '{';
    if (pairs && items.size() % 2 != 0) refuse_pickle("its pickle is malformed");
    for (std::size_t i = 0; i < items.size(); i += pairs ? 2 : 1) {
      if (pairs && items[i].front() != '"') refuse_pickle("a key in it is not a string");
      if (pairs && items[i] == kLeftOut) continue;
      if (whole.size() > 1) whole += ',';
      whole += items[i];
      if (pairs) whole += ':' + items[i + 1];
      if (whole.size() > kMostJsonBytes) refuse_pickle("it is too large");
    }
    push(whole + close);
  }
  void push_tuple(const std::vector<std::string>& items) {
    push("[]");
    extend('[', ']', items);
  }
  void push_tuple_of(std::size_t size) {
    std::vector<std::string> items(size);
    for (std::size_t i = size; i > 0; --i) items[i - 1] = pop();
    push_tuple(items);
  }
  void remember(std::uint64_t number) {
    std::string top = pop();
    spend(top.size());
    memo_[number] = top;
    push(std::move(top));
  }
  void recall(std::uint64_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) refuse_pickle("its pickle is malformed");
    push(found->second);
  }

  /// @return whether this was the last one
  bool step(unsigned char opcode) {
    switch (opcode) {
      case kProtocol: take(1); break;
      case kStop: return true;
      case kMark:
        if (marks_.size() >= kMostDepth) refuse_pickle("it is nested too deeply");
        marks_.push_back(stack_.size());
        break;
      case kNone: push("null"); break;
      case kTrue: push("true"); break;
      case kFalse: push("false"); break;
      case kInt32: push_long(take(4)); break;
      case kUint8: push(std::to_string(number(1))); break;
      case kUint16: push(std::to_string(number(2))); break;
      case kLong: push_long(take(number(1))); break;
      case kDouble: push_double(take(8)); break;
      case kString: push_string(take(number(4))); break;
      case kEmptyDict: push("{}"); break;
      case kEmptyList:
      case kEmptyTuple: push("[]"); break;
      case kTuple: push_tuple(pop_to_mark()); break;
      case kTuple1: push_tuple_of(1); break;
      case kTuple2: push_tuple_of(2); break;
      case kTuple3: push_tuple_of(3); break;
      case kAppends: extend('[', ']', pop_to_mark()); break;
      case kSetItems: extend('{', '}', pop_to_mark()); break;
      case kAppend: {
        const std::string item = pop();
        extend('[', ']', {item});
        break;
      }
      case kSetItem: {
        std::string value = pop();
        std::string key = pop();
        extend('{', '}', {std::move(key), std::move(value)});
        break;
      }
      case kPut8: remember(number(1)); break;
      case kPut32: remember(number(4)); break;
      case kGet8: recall(number(1)); break;
      case kGet32: recall(number(4)); break;
      default: refuse_pickle(fmt::format("it has opcode {:#04x}, which plain data has no need of", opcode));
    }
    return false;
  }

  std::string_view rest_;
  std::vector<std::string> stack_;
  std::vector<std::size_t> marks_;  ///< sizes of the stack
  std::map<std::uint64_t, std::string> memo_;
  std::size_t written_ = 0;
};

}  // namespace

std::string pickle_to_json(std::string_view pickle) { return PickleReader{pickle}.read(); }

}  // namespace ddp::diagnostics
