// Describes a message by the table of its fields: what each is called, where it lies and what it may be. Encoding,
// decoding, ranges, tests and fuzzing follow from the table (base/message.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include <ddp/error.hpp>

namespace ddp::base {

/// What a value, or each one of a list, may be. A type's own limits hold in any case.
struct Rule {
  static constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

  std::int64_t least = std::numeric_limits<std::int64_t>::min();  ///< of numbers
  std::int64_t most = kUnlimited;
  std::size_t longest = std::numeric_limits<std::uint32_t>::max();  ///< bytes of texts and blobs
  std::size_t fewest = 0;                                           ///< elements of lists
  std::size_t count = std::numeric_limits<std::uint32_t>::max();    ///< most elements of lists
  bool plain = false;  ///< texts that become part of a path, an address or a line: no '/', no control character
  bool cut = false;    ///< the sender truncates texts to `longest`
};
inline constexpr Rule kAny{};
inline constexpr Rule kCount{.least = 0};
inline constexpr Rule kCountOrNone{.least = -1};
inline constexpr Rule kPort{.least = 0, .most = 65535};
inline constexpr Rule kExitStatus{.least = 0, .most = 255};       // what wait(2) can report
inline constexpr Rule kSignal{.least = 0, .most = 64};            // SIGRTMAX of Linux
inline constexpr Rule kPlainName{.longest = 255, .plain = true};  // NAME_MAX of Linux
/// Enumerations from 0 to @p last.
template <auto last>
inline constexpr Rule kUpTo{.least = 0, .most = static_cast<std::int64_t>(last)};

template <class Owner, class Value>
struct Field {
  std::string_view name;
  Value Owner::*member;
  Rule rule;
};

template <class T>
inline constexpr bool kIsEnum = std::is_enum_v<T> && !std::is_same_v<T, std::byte>;
template <class T>
inline constexpr bool kIsEnum<std::vector<T>> = kIsEnum<T>;
template <class T>
inline constexpr bool kIsEnum<std::optional<T>> = kIsEnum<T>;

/// A member's name, out of "... [with auto member = &ddp::Point::x]".
template <auto member>
constexpr std::string_view name_of_member() {
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find("member = "));
  name = name.substr(0, name.find_first_of(";]"));
  return name.substr(name.rfind(':') + 1);
}
template <class Owner, class Value>
constexpr Field<Owner, Value> make_field(std::string_view name, Value Owner::*member, Rule rule) {
  return {name, member, rule};
}

/// The fields of @p members, which have one rule.
template <auto... members>
constexpr auto fields(Rule rule) {
  return std::tuple{make_field(name_of_member<members>(), members, rule)...};
}
template <auto... members>
constexpr auto fields() {
  constexpr auto kFields = fields<members...>(kAny);
  std::apply(
      []<class... Owner, class... Value>(const Field<Owner, Value>&...) {
        static_assert((!kIsEnum<Value> && ...), "an enumeration needs a rule: kUpTo<last>");
      },
      kFields);
  return kFields;
}

inline constexpr std::size_t kAnySize = std::numeric_limits<std::size_t>::max();

/// What errors say of a message, and what its first byte and its size are.
struct Heading {
  const char* name;          ///< "endpoint record"
  std::uint8_t version = 0;  ///< the first byte; 0: there is none, as for parts of other messages
  std::size_t most_bytes = kAnySize;
  const char* shorten = "";  ///< what a user can do about a message that is too large
  std::size_t unsent = 0;    ///< members that the table does not list, which the receiver gets as they are by default
};

template <class Fields>
struct Description {
  Heading heading;
  Fields fields;  ///< in the order in which they are sent
};

/// The description of a type lies beside it, where argument-dependent lookup finds it:
///
///   struct Point { int x = 0; int y = 0; std::string name; };
///   constexpr auto description(const Point*) {
///     return base::describe({"point", 1}, base::fields<&Point::x, &Point::y>(base::kCount),
///     base::fields<&Point::name>());
///   }
///
/// Members are numbers, flags, enumerations, texts, Bytes, times, other described types, types with write_value() and
/// read_value() (base/message.hpp), and vectors, arrays, optionals, maps, pairs and variants of them.
template <class... Fields>
constexpr auto describe(Heading heading, Fields... fields) {
  return Description<decltype(std::tuple_cat(fields...))>{heading, std::tuple_cat(fields...)};
}

template <class T>
concept IsDescribed = requires(const T* type) {
  description(type);
};

}  // namespace ddp::base

namespace ddp {

/// Without a heading of its own: part of messages that report a failure.
constexpr auto description(const ErrorDetail*) {
  return base::describe({"error"}, base::fields<&ErrorDetail::code>(base::kUpTo<ErrorCode::aborted>),
                        base::fields<&ErrorDetail::attempted, &ErrorDetail::cause, &ErrorDetail::native,
                                     &ErrorDetail::ranks, &ErrorDetail::hint>());
}

}  // namespace ddp
