// Messages as bytes and back, field by field as their descriptions list them (base/message_fields.hpp): little-endian
// numbers; enumerations and flags as a byte; texts, bytes and lists behind a 32-bit length; a byte before what is
// optional; doubles as their bits; times as nanoseconds since 1970. What a description does not allow is refused.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ddp/bytes.hpp>

#include "base/byte_stream.hpp"
#include "base/message_fields.hpp"

namespace ddp::base {
namespace message {

using Time = std::chrono::system_clock::time_point;

/// Converts to anything: counts the members of an aggregate.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
template <class T, class... Members>
constexpr std::size_t count_members() {
  if constexpr (requires { T{Members{}..., Anything{}}; }) {
    return count_members<T, Members..., Anything>();
  } else {
    return sizeof...(Members);
  }
}
template <class T>
constexpr bool lists_all_members() {
  constexpr auto table = description(static_cast<const T*>(nullptr));
  return std::tuple_size_v<decltype(table.fields)> + table.heading.unsent == count_members<T>();
}

/// The field that is read or written.
struct Place {
  const char* owner = "";
  std::string_view field{};
  Rule rule{};
};

[[noreturn]] void refuse_number(const ByteReader& in, const Place& place, const std::string& number,
                                const std::string& least, const std::string& most);
[[noreturn]] void refuse_kind(const ByteReader& in, std::size_t kind);
[[noreturn]] void refuse_infinite(const ByteReader& in, const Place& place);
void check_count(const ByteReader& in, const Place& place, std::size_t count);
void check_text(const ByteReader& in, const Place& place, std::string_view text);
void check_length(const ByteReader& in, const Place& place, std::size_t bytes);
void check_version(ByteReader& in, std::uint8_t version);
/// Of a message that is written, or read.
void check_size(const Heading& heading, std::size_t bytes);
void check_size(const ByteReader& in, const Heading& heading);

template <class T>
inline constexpr bool kIsVariant = false;
template <class... Kinds>
inline constexpr bool kIsVariant<std::variant<Kinds...>> = true;
template <class T>
concept IsTable = IsDescribed<T> && !kIsVariant<T>;
template <class T>
concept HasOwnCodec = requires(ByteWriter& out, ByteReader& in, T& value) {
  write_value(out, value);
  read_value(in, value);
};

// ---- writing

template <class Part>
requires std::integral<Part> || std::is_enum_v<Part>
void write(ByteWriter& out, const Rule& /*rule*/, Part value) {
  if constexpr (std::is_enum_v<Part> || std::same_as<Part, bool>) {
    out.integer(static_cast<std::uint8_t>(value));
  } else {
    out.integer(value);
  }
}
inline void write(ByteWriter& out, const Rule& /*rule*/, double number) {
  out.integer(std::bit_cast<std::uint64_t>(number));
}
inline void write(ByteWriter& out, const Rule& rule, const std::string& text) {
  out.text(rule.cut ? std::string_view{text}.substr(0, rule.longest) : std::string_view{text});
}
inline void write(ByteWriter& out, const Rule& /*rule*/, const Bytes& bytes) { out.blob(bytes); }
inline void write(ByteWriter& out, const Rule& /*rule*/, Time time) {
  out.integer(std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count()});
}
template <HasOwnCodec T>
void write(ByteWriter& out, const Rule& /*rule*/, const T& value) {
  write_value(out, value);
}

// Declared before all are defined, since they contain one another.
template <IsTable T>
void write(ByteWriter& out, const Rule& rule, const T& described);
template <class... Kinds>
void write(ByteWriter& out, const Rule& rule, const std::variant<Kinds...>& variant);
template <class T>
void write(ByteWriter& out, const Rule& rule, const std::vector<T>& list);
template <class T, std::size_t size>
void write(ByteWriter& out, const Rule& rule, const std::array<T, size>& list);
template <class T>
void write(ByteWriter& out, const Rule& rule, const std::optional<T>& optional);
template <class Key, class T, class Less>
void write(ByteWriter& out, const Rule& rule, const std::map<Key, T, Less>& map);

template <class First, class Second>
void write(ByteWriter& out, const Rule& rule, const std::pair<First, Second>& pair) {
  write(out, rule, pair.first);
  write(out, rule, pair.second);
}
template <class T>
void write(ByteWriter& out, const Rule& rule, const std::vector<T>& list) {
  out.integer(static_cast<std::uint32_t>(list.size()));
  for (const T& element : list) write(out, rule, element);
}
template <class T, std::size_t size>
void write(ByteWriter& out, const Rule& rule, const std::array<T, size>& list) {
  if constexpr (std::same_as<T, std::byte>) {
    out.raw(list);
  } else {
    for (const T& element : list) write(out, rule, element);
  }
}
template <class T>
void write(ByteWriter& out, const Rule& rule, const std::optional<T>& optional) {
  write(out, rule, optional.has_value());
  if (optional) write(out, rule, *optional);
}
template <class Key, class T, class Less>
void write(ByteWriter& out, const Rule& rule, const std::map<Key, T, Less>& map) {
  out.integer(static_cast<std::uint32_t>(map.size()));
  for (const auto& entry : map) write(out, rule, entry);
}
template <class... Kinds>
void write(ByteWriter& out, const Rule& rule, const std::variant<Kinds...>& variant) {
  out.integer(static_cast<std::uint8_t>(variant.index()));
  std::visit(
      [&]<class Kind>(const Kind& kind) {
        if constexpr (IsDescribed<Kind>) write(out, rule, kind);
      },
      variant);
}
template <IsTable T>
void write(ByteWriter& out, const Rule& /*rule*/, const T& described) {
  static_assert(lists_all_members<T>(), "a member has no field");
  constexpr auto kTable = description(static_cast<const T*>(nullptr));
  std::apply([&](const auto&... field) { (write(out, field.rule, described.*field.member), ...); }, kTable.fields);
}

// ---- reading

template <class Int>
requires std::integral<Int> || std::is_enum_v<Int>
void read(ByteReader& in, const Place& place, Int& number) {
  using Wire = std::conditional_t<std::is_enum_v<Int> || std::same_as<Int, bool>, std::uint8_t, Int>;
  using Wide = std::conditional_t<std::is_signed_v<Wire>, std::int64_t, std::uint64_t>;
  using Limits = std::numeric_limits<Wire>;
  const auto wire = in.integer<Wire>();
  Wide least = Limits::min();
  Wide most = std::same_as<Int, bool> ? Wide{1} : Wide{Limits::max()};
  if (place.rule.least > static_cast<std::int64_t>(least)) least = static_cast<Wide>(place.rule.least);
  if (place.rule.most < Rule::kUnlimited && static_cast<Wide>(place.rule.most) < most)
    most = static_cast<Wide>(place.rule.most);
  if (const Wide value = wire; value < least || value > most)
    refuse_number(in, place, std::to_string(value), std::to_string(least), std::to_string(most));
  number = static_cast<Int>(wire);
}
inline void read(ByteReader& in, const Place& place, double& number) {
  number = std::bit_cast<double>(in.integer<std::uint64_t>());
  if (!(number - number == 0)) refuse_infinite(in, place);
}
inline void read(ByteReader& in, const Place& place, std::string& text) {
  text = in.text();
  check_text(in, place, text);
}
inline void read(ByteReader& in, const Place& place, Bytes& bytes) {
  const auto blob = in.blob();
  check_length(in, place, blob.size());
  bytes.assign(blob.begin(), blob.end());
}
inline void read(ByteReader& in, const Place& /*place*/, Time& time) {
  const std::chrono::nanoseconds since_1970{in.integer<std::int64_t>()};
  time = Time{std::chrono::duration_cast<Time::duration>(since_1970)};
}
template <HasOwnCodec T>
void read(ByteReader& in, const Place& /*place*/, T& value) {
  read_value(in, value);
}

template <IsTable T>
void read(ByteReader& in, const Place& place, T& described);
template <class... Kinds>
void read(ByteReader& in, const Place& place, std::variant<Kinds...>& variant);
template <class T>
void read(ByteReader& in, const Place& place, std::vector<T>& list);
template <class T, std::size_t size>
void read(ByteReader& in, const Place& place, std::array<T, size>& list);
template <class T>
void read(ByteReader& in, const Place& place, std::optional<T>& optional);
template <class Key, class T, class Less>
void read(ByteReader& in, const Place& place, std::map<Key, T, Less>& map);

template <class First, class Second>
void read(ByteReader& in, const Place& place, std::pair<First, Second>& pair) {
  read(in, place, pair.first);
  read(in, place, pair.second);
}
// The number of elements is only claimed: memory is taken as they come.
template <class T>
void read(ByteReader& in, const Place& place, std::vector<T>& list) {
  const auto count = in.integer<std::uint32_t>();
  check_count(in, place, count);
  list.clear();
  for (std::uint32_t i = 0; i < count; ++i) read(in, place, list.emplace_back());
}
template <class T, std::size_t size>
void read(ByteReader& in, const Place& place, std::array<T, size>& list) {
  if constexpr (std::same_as<T, std::byte>) {
    const auto bytes = in.raw(size);
    std::copy(bytes.begin(), bytes.end(), list.begin());
  } else {
    for (T& element : list) read(in, place, element);
  }
}
template <class T>
void read(ByteReader& in, const Place& place, std::optional<T>& optional) {
  bool given = false;
  read(in, Place{.owner = place.owner, .field = place.field}, given);
  optional.reset();
  if (given) read(in, place, optional.emplace());
}
template <class Key, class T, class Less>
void read(ByteReader& in, const Place& place, std::map<Key, T, Less>& map) {
  const auto count = in.integer<std::uint32_t>();
  check_count(in, place, count);
  map.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    std::pair<Key, T> entry;
    read(in, place, entry);
    map.insert_or_assign(std::move(entry.first), std::move(entry.second));
  }
}
template <class... Kinds>
void read(ByteReader& in, const Place& place, std::variant<Kinds...>& variant) {
  const std::size_t kind = in.integer<std::uint8_t>();
  const auto read_one = [&]<std::size_t I>() {
    using Kind = std::variant_alternative_t<I, std::variant<Kinds...>>;
    if constexpr (IsDescribed<Kind>) {
      if (kind == I) read(in, place, variant.template emplace<I>());
      return kind == I;
    } else {
      return false;
    }
  };
  const bool known = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return (read_one.template operator()<I>() || ...);
  }
  (std::index_sequence_for<Kinds...>{});
  if (!known) refuse_kind(in, kind);
}
template <IsTable T>
void read(ByteReader& in, const Place& /*place*/, T& described) {
  static_assert(lists_all_members<T>(), "a member has no field");
  constexpr auto kTable = description(static_cast<const T*>(nullptr));
  std::apply(
      [&](const auto&... field) {
        (read(in, Place{.owner = kTable.heading.name, .field = field.name, .rule = field.rule},
              described.*field.member),
         ...);
      },
      kTable.fields);
}

}  // namespace message

/// The bytes of a described type. Throws Error(invalid_argument) when they would be more than its heading allows.
template <IsDescribed T>
Bytes encode(const T& value) {
  constexpr Heading kHeading = description(static_cast<const T*>(nullptr)).heading;
  ByteWriter out;
  if (kHeading.version != 0) out.integer(kHeading.version);
  message::write(out, kAny, value);
  if (kHeading.most_bytes < kAnySize) message::check_size(kHeading, out.bytes().size());
  return std::move(out).bytes();
}

/// Whether encode() has room for it.
template <IsDescribed T>
bool fits(const T& value) {
  ByteWriter out;
  message::write(out, kAny, value);
  const Heading heading = description(static_cast<const T*>(nullptr)).heading;
  return out.bytes().size() + (heading.version != 0 ? 1 : 0) <= heading.most_bytes;
}

/// Throws Error(protocol) for anything that encode() does not make. Takes memory in proportion to @p bytes.
template <IsDescribed T>
T decode(std::span<const std::byte> bytes) {
  constexpr Heading kHeading = description(static_cast<const T*>(nullptr)).heading;
  ByteReader in{bytes, kHeading.name};
  if (kHeading.most_bytes < kAnySize) message::check_size(in, kHeading);
  if (kHeading.version != 0) message::check_version(in, kHeading.version);
  T value{};
  message::read(in, {}, value);
  in.expect_end();
  return value;
}

}  // namespace ddp::base
