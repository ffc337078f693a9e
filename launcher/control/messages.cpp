// Control messages as bytes and back, field by field as message_fields.hpp lists them.
#include "control/messages.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "control/message_fields.hpp"
#include "control/protocol_error.hpp"

namespace ddp::launcher::control {
namespace {

using base::ByteReader, base::ByteWriter;
using Time = std::chrono::system_clock::time_point;

template <class T>
concept IsDescribed = requires {
  Described<T>::kFields;
};

// ---- writing

void write(ByteWriter& out, std::integral auto number) { out.integer(number); }
void write(ByteWriter& out, const std::string& text) { out.text(text); }
void write(ByteWriter& out, const Bytes& bytes) { out.blob(bytes); }
void write(ByteWriter& out, Time time) {
  out.integer(std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count()});
}

template <IsDescribed T>
void write(ByteWriter& out, const T& described);

template <class T>
void write(ByteWriter& out, const std::vector<T>& list) {
  out.integer(static_cast<std::uint32_t>(list.size()));
  for (const T& element : list) write(out, element);
}

template <IsDescribed T>
void write(ByteWriter& out, const T& described) {
  std::apply([&](const auto&... field) { (write(out, described.*field.member), ...); }, Described<T>::kFields);
}

// ---- reading

/// Which field is read, for errors, and what it may be.
struct Place {
  const char* owner;
  const char* field;
  Range range;
  TextRule text = TextRule::any;
};

void check(std::int64_t number, const Place& place) {
  if (number >= place.range.least && number <= place.range.most) return;
  refuse("reading a control message", fmt::format("{}: '{}' is {}, which is not between {} and {}", place.owner,
                                                  place.field, number, place.range.least, place.range.most));
}

void read(ByteReader& in, const Place& place, bool& flag) {
  const auto byte = in.integer<std::uint8_t>();
  check(byte, {.owner = place.owner, .field = place.field, .range = {.least = 0, .most = 1}});
  flag = byte == 1;
}

template <std::signed_integral Int>
void read(ByteReader& in, const Place& place, Int& number) {
  using Limits = std::numeric_limits<Int>;
  number = in.integer<Int>();
  check(number, {.owner = place.owner,
                 .field = place.field,
                 .range = {.least = std::max<std::int64_t>(place.range.least, Limits::min()),
                           .most = std::min<std::int64_t>(place.range.most, Limits::max())}});
}

constexpr std::size_t kLongestName = 255;  // NAME_MAX of Linux

void read(ByteReader& in, const Place& place, std::string& text) {
  text = in.text();
  if (place.text == TextRule::any) return;
  const bool fits = text.size() <= kLongestName && std::none_of(text.begin(), text.end(), [](unsigned char c) {
                      return c == '/' || c < ' ' || c == 0x7f;
                    });
  if (!fits)
    refuse("reading a control message",
           fmt::format("{}: '{}' is longer than {} bytes, or has a '/' or a control character", place.owner,
                       place.field, kLongestName));
}

void read(ByteReader& in, const Place& /*place*/, Bytes& bytes) {
  const auto blob = in.blob();
  bytes.assign(blob.begin(), blob.end());
}

void read(ByteReader& in, const Place& /*place*/, Time& time) {
  const std::chrono::nanoseconds since_1970{in.integer<std::int64_t>()};
  time = Time{std::chrono::duration_cast<Time::duration>(since_1970)};
}

template <IsDescribed T>
void read(ByteReader& in, T& described);

template <IsDescribed T>
void read(ByteReader& in, const Place& /*place*/, T& described) {
  read(in, described);
}

// The number of elements is only claimed: memory is taken as they come.
template <class T>
void read(ByteReader& in, const Place& place, std::vector<T>& list) {
  for (auto left = in.integer<std::uint32_t>(); left > 0; --left) read(in, place, list.emplace_back());
}

template <IsDescribed T>
void read(ByteReader& in, T& described) {
  std::apply(
      [&](const auto&... field) {
        (read(in, Place{.owner = Described<T>::kName, .field = field.name, .range = field.range, .text = field.text},
              described.*field.member),
         ...);
      },
      Described<T>::kFields);
}

// ---- kinds

// All but the last, Encoded.
using Kinds = std::make_index_sequence<std::variant_size_v<Message> - 1>;

template <std::size_t... I>
Message read_kind(std::size_t kind, ByteReader& in, std::index_sequence<I...>) {
  Message message;
  const bool known = ((kind == I && (read(in, message.emplace<I>()), true)) || ...);
  if (!known) refuse("reading a control message", fmt::format("there is no message of kind {}", kind));
  return message;
}

}  // namespace

Bytes encode(const Message& message) {
  if (const auto* encoded = std::get_if<Encoded>(&message)) return *encoded->bytes;
  ByteWriter out;
  out.integer(static_cast<std::uint8_t>(message.index()));
  std::visit(
      [&]<class Kind>(const Kind& kind) {
        if constexpr (IsDescribed<Kind>) write(out, kind);
      },
      message);
  return std::move(out).bytes();
}

Encoded encode_once(const Message& message) {
  if (const auto* encoded = std::get_if<Encoded>(&message)) return *encoded;
  return {.bytes = std::make_shared<const Bytes>(encode(message))};
}

Message decode(std::span<const std::byte> bytes) {
  ByteReader in{bytes, "control message"};
  const auto kind = in.integer<std::uint8_t>();
  Message message = read_kind(kind, in, Kinds{});
  in.expect_end();
  return message;
}

bool is_bulk(std::span<const std::byte> bytes) {
  static const std::array kinds{Message{Fence{}}.index(), Message{ModexRequest{}}.index(),
                                Message{ModexReply{}}.index(), Message{ConsoleOutput{}}.index(),
                                Message{RanksObserved{}}.index()};
  return !bytes.empty() && std::find(kinds.begin(), kinds.end(), std::to_integer<std::size_t>(bytes[0])) != kinds.end();
}

const char* name_of(const Message& message) {
  return std::visit(
      []<class Kind>(const Kind&) {
        if constexpr (IsDescribed<Kind>) return Described<Kind>::kName;
        return "Encoded";
      },
      message);
}

}  // namespace ddp::launcher::control
