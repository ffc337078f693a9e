// Messages as bytes and back, field by field as their descriptions list them (base/message_fields.hpp): little-endian
// numbers; enumerations and flags as a byte; texts, bytes and lists after a 32-bit length; a byte before what is
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

#include <ddp/bytes.hpp>

#include "base/byte_stream.hpp"
#include "base/message_fields.hpp"

namespace ddp::base {
namespace message {

using Time = std::chrono::system_clock::time_point;

template <class T>
inline constexpr auto kTable = description(static_cast<const T*>(nullptr));

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
concept ListsAllMembers = std::tuple_size_v<decltype(kTable<T>.fields)>
+ kTable<T>.heading.unsent == count_members<T>();

template <class T, template <class...> class Template>
inline constexpr bool kIs = false;
template <template <class...> class Template, class... Parts>
inline constexpr bool kIs<Template<Parts...>, Template> = true;
template <class T>
inline constexpr bool kIsArray = false;
template <class T, std::size_t size>
inline constexpr bool kIsArray<std::array<T, size>> = true;
template <class T>
inline constexpr bool kIsByteArray = false;
template <std::size_t size>
inline constexpr bool kIsByteArray<std::array<std::byte, size>> = true;

template <class T>
concept IsTable = IsDescribed<T> && !kIs<T, std::variant>;
template <class T>
concept HasOwnCodec = requires(ByteWriter& out, ByteReader& in, T& value) {
  write_value(out, value);
  read_value(in, value);
};

/// An element before it is read.
template <class T>
T blank() {
  if constexpr (std::same_as<T, Error>) {
    return Error{ErrorDetail{}};
  } else {
    return T{};
  }
}

/// The field that is read.
struct Place {
  const char* owner = "";
  std::string_view field{};
  Rule rule{};
};

[[noreturn]] void refuse_number(const ByteReader& in, const Place& place, const std::string& number,
                                const std::string& least, const std::string& most);
[[noreturn]] void refuse_kind(const ByteReader& in, std::size_t kind);
void check_finite(const ByteReader& in, const Place& place, double number);
void check_count(const ByteReader& in, const Place& place, std::size_t count);
void check_text(const ByteReader& in, const Place& place, std::string_view text);
void check_length(const ByteReader& in, const Place& place, std::size_t bytes);
void check_version(ByteReader& in, std::uint8_t version);
/// Of a message that is written, or read.
void check_size(const Heading& heading, std::size_t bytes);
void check_size(const ByteReader& in, const Heading& heading);

template <class T>
void write(ByteWriter& out, const Rule& rule, const T& value) {
  if constexpr (std::is_enum_v<T> || std::same_as<T, bool>) {
    out.integer(static_cast<std::uint8_t>(value));
  } else if constexpr (std::integral<T>) {
    out.integer(value);
  } else if constexpr (std::same_as<T, double>) {
    out.integer(std::bit_cast<std::uint64_t>(value));
  } else if constexpr (std::same_as<T, std::string>) {
    out.text(rule.cut ? std::string_view{value}.substr(0, rule.longest) : std::string_view{value});
  } else if constexpr (std::same_as<T, Bytes>) {
    out.blob(value);
  } else if constexpr (kIsByteArray<T>) {
    out.raw(value);
  } else if constexpr (std::same_as<T, Time>) {
    out.integer(std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(value.time_since_epoch()).count()});
  } else if constexpr (std::same_as<T, Error>) {
    write(out, rule, value.detail());
  } else if constexpr (HasOwnCodec<T>) {
    write_value(out, value);
  } else if constexpr (IsTable<T>) {
    static_assert(ListsAllMembers<T>, "a member has no field");
    std::apply([&](const auto&... field) { (write(out, field.rule, value.*field.member), ...); }, kTable<T>.fields);
  } else if constexpr (kIs<T, std::variant>) {
    out.integer(static_cast<std::uint8_t>(value.index()));
    std::visit(
        [&]<class Kind>(const Kind& kind) {
          if constexpr (IsDescribed<Kind>) write(out, rule, kind);
        },
        value);
  } else if constexpr (kIs<T, std::optional>) {
    write(out, rule, value.has_value());
    if (value) write(out, rule, *value);
  } else if constexpr (kIs<T, std::pair>) {
    write(out, rule, value.first);
    write(out, rule, value.second);
  } else {
    if constexpr (!kIsArray<T>) out.integer(static_cast<std::uint32_t>(value.size()));
    for (const auto& element : value) write(out, rule, element);
  }
}

template <class Int>
void read_number(ByteReader& in, const Place& place, Int& number) {
  using Wire = std::conditional_t<std::is_enum_v<Int> || std::same_as<Int, bool>, std::uint8_t, Int>;
  using Wide = std::conditional_t<std::is_signed_v<Wire>, std::int64_t, std::uint64_t>;
  using Limits = std::numeric_limits<Wire>;
  Wide least = Limits::min();
  Wide most = std::same_as<Int, bool> ? Wide{1} : Wide{Limits::max()};
  if (place.rule.least > static_cast<std::int64_t>(least)) least = static_cast<Wide>(place.rule.least);
  if (place.rule.most < Rule::kUnlimited) most = std::min(most, static_cast<Wide>(place.rule.most));
  const Wide value = in.integer<Wire>();
  if (value < least || value > most)
    refuse_number(in, place, std::to_string(value), std::to_string(least), std::to_string(most));
  number = static_cast<Int>(value);
}

template <class T>
void read(ByteReader& in, const Place& place, T& value);

template <class... Kinds>
void read_variant(ByteReader& in, const Place& place, std::variant<Kinds...>& variant) {
  const std::size_t kind = in.integer<std::uint8_t>();
  std::size_t index = 0;
  bool known = false;
  const auto read_one = [&]<class Kind>() {
    if constexpr (IsDescribed<Kind>) {
      if (kind == index) read(in, place, variant.template emplace<Kind>()), known = true;
    }
    ++index;
  };
  (read_one.template operator()<Kinds>(), ...);
  if (!known) refuse_kind(in, kind);
}

template <class T>
void read(ByteReader& in, const Place& place, T& value) {
  if constexpr (std::integral<T> || std::is_enum_v<T>) {
    read_number(in, place, value);
  } else if constexpr (std::same_as<T, double>) {
    value = std::bit_cast<double>(in.integer<std::uint64_t>());
    check_finite(in, place, value);
  } else if constexpr (std::same_as<T, std::string>) {
    value = in.text();
    check_text(in, place, value);
  } else if constexpr (std::same_as<T, Bytes>) {
    const auto blob = in.blob();
    check_length(in, place, blob.size());
    value.assign(blob.begin(), blob.end());
  } else if constexpr (kIsByteArray<T>) {
    std::ranges::copy(in.raw(value.size()), value.begin());
  } else if constexpr (std::same_as<T, Time>) {
    const std::chrono::nanoseconds since_1970{in.integer<std::int64_t>()};
    value = Time{std::chrono::duration_cast<Time::duration>(since_1970)};
  } else if constexpr (std::same_as<T, Error>) {
    ErrorDetail detail{};
    read(in, place, detail);
    value = Error{std::move(detail)};
  } else if constexpr (HasOwnCodec<T>) {
    read_value(in, value);
  } else if constexpr (IsTable<T>) {
    static_assert(ListsAllMembers<T>, "a member has no field");
    std::apply(
        [&](const auto&... field) {
          (read(in, {.owner = kTable<T>.heading.name, .field = field.name, .rule = field.rule}, value.*field.member),
           ...);
        },
        kTable<T>.fields);
  } else if constexpr (kIs<T, std::variant>) {
    read_variant(in, place, value);
  } else if constexpr (kIs<T, std::optional>) {
    bool given = false;
    read_number(in, {.owner = place.owner, .field = place.field}, given);
    value.reset();
    if (given) read(in, place, value.emplace(blank<typename T::value_type>()));
  } else if constexpr (kIs<T, std::pair>) {
    read(in, place, value.first);
    read(in, place, value.second);
  } else if constexpr (kIsArray<T>) {
    for (auto& element : value) read(in, place, element);
  } else {
    // The number of elements is only claimed: memory is taken as they come.
    const auto count = in.integer<std::uint32_t>();
    check_count(in, place, count);
    value.clear();
    for (std::uint32_t i = 0; i < count; ++i) {
      if constexpr (kIs<T, std::map>) {
        std::pair<typename T::key_type, typename T::mapped_type> entry;
        read(in, place, entry);
        value.insert_or_assign(std::move(entry.first), std::move(entry.second));
      } else {
        read(in, place, value.emplace_back());
      }
    }
  }
}

}  // namespace message

/// The bytes of a described type. Throws Error(invalid_argument) when they would be more than its heading allows.
template <IsDescribed T>
Bytes encode(const T& value) {
  constexpr Heading kHeading = message::kTable<T>.heading;
  ByteWriter out;
  if (kHeading.version != 0) out.integer(kHeading.version);
  message::write(out, kAny, value);
  if (kHeading.most_bytes < kAnySize) message::check_size(kHeading, out.bytes().size());
  return std::move(out).bytes();
}

/// Whether encode() has room for it.
template <IsDescribed T>
bool fits(const T& value) {
  constexpr Heading kHeading = message::kTable<T>.heading;
  ByteWriter out;
  message::write(out, kAny, value);
  return out.bytes().size() + (kHeading.version != 0 ? 1 : 0) <= kHeading.most_bytes;
}

/// Throws Error(protocol) for anything that encode() does not make. Takes memory in proportion to @p bytes.
template <IsDescribed T>
T decode(std::span<const std::byte> bytes) {
  constexpr Heading kHeading = message::kTable<T>.heading;
  ByteReader in{bytes, kHeading.name};
  if (kHeading.most_bytes < kAnySize) message::check_size(in, kHeading);
  if (kHeading.version != 0) message::check_version(in, kHeading.version);
  T value{};
  message::read(in, {}, value);
  in.expect_end();
  return value;
}

}  // namespace ddp::base
