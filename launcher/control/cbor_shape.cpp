// Walks over the heads of CBOR items without recursion.
#include "control/cbor_shape.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

namespace ddp::launcher::control {
namespace {

// RFC 8949, section 3.1
enum class Major : std::uint8_t { unsigned_int, negative_int, byte_string, text, array, map, tag, simple };

struct Head {
  Major major;
  std::uint64_t argument;
};

class Walker {
 public:
  explicit Walker(std::span<const std::byte> bytes) : rest_(bytes) {}

  const char* walk() {
    left_[0] = 1;
    for (;;) {
      while (left_[depth_] == 0) {
        if (depth_ == 0) return rest_.empty() ? nullptr : "it goes on after its end";
        --depth_;
      }
      --left_[depth_];
      if (++items_ > kMaxCborItems) return "it has too many values";
      if (const char* flaw = item()) return flaw;
    }
  }

 private:
  static constexpr const char* kCut = "it ends too early";

  const char* item() {
    if (rest_.empty()) return kCut;
    if ((std::to_integer<unsigned>(rest_[0]) & 0x1FU) > 27) return "it has an item of unknown length";
    const std::optional<Head> head = take_head();
    if (!head) return kCut;
    switch (head->major) {
      case Major::unsigned_int:
      case Major::simple: return nullptr;
      case Major::negative_int:
        return head->argument > std::numeric_limits<std::int64_t>::max() ? "it has a number out of range" : nullptr;
      case Major::byte_string:
      case Major::text:
        if (head->argument > rest_.size()) return kCut;
        rest_ = rest_.subspan(head->argument);
        return nullptr;
      case Major::array:
      case Major::map: return open(*head);
      case Major::tag: break;
    }
    return "it has a tag";
  }

  const char* open(const Head& head) {
    // Each value has a byte at least, so the number of values cannot overflow after this.
    if (head.argument > rest_.size()) return kCut;
    if (++depth_ == left_.size()) return "it is nested too deep";
    left_[depth_] = head.major == Major::map ? 2 * head.argument : head.argument;
    return nullptr;
  }

  std::optional<Head> take_head() {
    const auto first = std::to_integer<unsigned>(rest_[0]);
    const unsigned info = first & 0x1FU;
    const std::size_t extra = info < 24 ? 0 : std::size_t{1} << (info - 24U);
    if (rest_.size() < 1 + extra) return std::nullopt;
    std::uint64_t argument = info < 24 ? info : 0;
    for (const std::byte byte : rest_.subspan(1, extra)) argument = argument << 8U | std::to_integer<unsigned>(byte);
    rest_ = rest_.subspan(1 + extra);
    return Head{.major = static_cast<Major>(first >> 5U), .argument = argument};
  }

  std::span<const std::byte> rest_;
  std::array<std::uint64_t, kMaxCborDepth + 1> left_{};  // by depth: values still to come
  std::size_t depth_ = 0;
  std::size_t items_ = 0;
};

}  // namespace

const char* flaw_of_cbor(std::span<const std::byte> bytes) noexcept { return Walker{bytes}.walk(); }

}  // namespace ddp::launcher::control
