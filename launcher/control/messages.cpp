// Control messages as CBOR maps and back, field by field as message_fields.hpp lists them.
#include "control/messages.hpp"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "control/cbor_shape.hpp"
#include "control/message_fields.hpp"

namespace ddp::launcher::control {
namespace {

using Json = nlohmann::json;

constexpr const char* kNameKey = "is";

[[noreturn]] void refuse(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading a control message",
               .cause = std::move(cause),
               .native = {},
               .ranks = {},
               .hint = {}}};
}

// ---- writing

template <class T>
concept IsDescribed = requires {
  Described<T>::kFields;
};

Json write(const Bytes& bytes);
template <IsDescribed T>
Json write(const std::vector<T>& list);

template <class T>
Json write(const T& value) {
  return value;
}

// Text is written as it is, also where it is no UTF-8: the standard error of a rank may hold anything.
Json write(const Bytes& bytes) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return Json::binary(std::vector<std::uint8_t>{begin, begin + bytes.size()});
}

template <IsDescribed T>
Json write(const T& described) {
  Json map = Json::object();
  std::apply([&](const auto&... field) { ((map[field.name] = write(described.*field.member)), ...); },
             Described<T>::kFields);
  return map;
}

template <IsDescribed T>
Json write(const std::vector<T>& list) {
  Json array = Json::array();
  for (const T& described : list) array.push_back(write(described));
  return array;
}

// ---- reading

/// Where in a message a value is. Its text is made for errors only, since lists are long.
struct Place {
  const std::string& path;
  const char* field;
  Range range;
  std::optional<std::size_t> index = {};

  /// "Hello: 'order'", "PrepareAttempt: 'nodes'[3]: 'host'"
  std::string text() const { return fmt::format("{}: '{}'{}", path, field, index ? fmt::format("[{}]", *index) : ""); }
  [[noreturn]] void refuse_as(const char* wanted) const { refuse(fmt::format("{} is not {}", text(), wanted)); }
};

template <IsDescribed T>
void read(Json& map, const std::string& path, T& described);

void read(Json& value, const Place& place, std::string& text) {
  if (!value.is_string()) place.refuse_as("a text");
  text = std::move(value.get_ref<std::string&>());
}

void read(Json& value, const Place& place, bool& flag) {
  if (!value.is_boolean()) place.refuse_as("true or false");
  flag = value.get<bool>();
}

template <std::integral Int>
requires(!std::same_as<Int, bool>) void read(Json& value, const Place& place, Int& number) {
  if (!value.is_number_integer()) place.refuse_as("a whole number");
  constexpr std::int64_t kLeast = std::numeric_limits<Int>::min();
  constexpr std::int64_t kMost = std::numeric_limits<Int>::max();
  const std::int64_t least = std::max(place.range.least, kLeast);
  const std::int64_t most = std::min(place.range.most, kMost);
  const auto in_range = [&] {
    if (value.is_number_unsigned() && std::cmp_greater(value.get<std::uint64_t>(), most)) return false;
    const auto signed_value = value.get<std::int64_t>();
    return signed_value >= least && signed_value <= most;
  };
  if (!in_range()) {
    refuse(fmt::format("{} is {}, which is not between {} and {}", place.text(), value.dump(), least, most));
  }
  number = static_cast<Int>(value.get<std::int64_t>());
}

void read(Json& value, const Place& place, Bytes& bytes) {
  if (!value.is_binary()) place.refuse_as("a byte string");
  const auto& binary = value.get_binary();
  const auto* begin = reinterpret_cast<const std::byte*>(binary.data());
  bytes.assign(begin, begin + binary.size());
}

template <IsDescribed T>
void read(Json& value, const Place& place, T& described) {
  if (!value.is_object()) place.refuse_as("a map");
  read(value, place.text(), described);
}

template <class T>
void read(Json& value, const Place& place, std::vector<T>& list) {
  if (!value.is_array()) place.refuse_as("a list");
  list.resize(value.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    read(value[i], {.path = place.path, .field = place.field, .range = place.range, .index = i}, list[i]);
  }
}

template <class T, class Owner, class Value>
void read_field(Json& map, const std::string& path, T& described, const Field<Owner, Value>& field) {
  const Place place{.path = path, .field = field.name, .range = field.range};
  const auto found = map.find(field.name);
  if (found == map.end()) refuse(place.text() + " is missing");
  read(*found, place, described.*field.member);
}

template <IsDescribed T>
void read(Json& map, const std::string& path, T& described) {
  std::apply([&](const auto&... field) { (read_field(map, path, described, field), ...); }, Described<T>::kFields);
}

/// Reads the message if it is of the I-th kind or a later one.
template <std::size_t I = 0>
std::optional<Message> read_as(const std::string& name, Json& map) {
  if constexpr (I < std::variant_size_v<Message>) {
    using Kind = std::variant_alternative_t<I, Message>;
    if (name != Described<Kind>::kName) return read_as<I + 1>(name, map);
    Kind message;
    read(map, name, message);
    return message;
  }
  return std::nullopt;
}

/// The beginning of a name that may be anything, as one printable line.
std::string shown(const std::string& name) {
  std::string text = name.substr(0, 40);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

Bytes encode(const Message& message) {
  Json map = std::visit([](const auto& kind) { return write(kind); }, message);
  map[kNameKey] = name_of(message);
  const std::vector<std::uint8_t> cbor = Json::to_cbor(map);
  const auto* begin = reinterpret_cast<const std::byte*>(cbor.data());
  return {begin, begin + cbor.size()};
}

Message decode(std::span<const std::byte> bytes) {
  if (const char* flaw = flaw_of_cbor(bytes)) refuse(flaw);
  const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  Json map = Json::from_cbor(begin, begin + bytes.size(), true, false);
  if (!map.is_object()) refuse("it is no CBOR map with texts as keys");
  const auto name_value = map.find(kNameKey);
  if (name_value == map.end() || !name_value->is_string()) refuse("it does not say what it is");
  const std::string name = name_value->get<std::string>();
  std::optional<Message> message = read_as(name, map);
  if (!message) refuse(fmt::format("there is no message '{}'", shown(name)));
  return *std::move(message);
}

const char* name_of(const Message& message) {
  return std::visit([](const auto& kind) { return Described<std::remove_cvref_t<decltype(kind)>>::kName; }, message);
}

}  // namespace ddp::launcher::control
