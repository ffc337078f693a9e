// Samples of described messages, whole or with one rule broken, by their own tables.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "base/message.hpp"

namespace ddp::tests {

/// Gives every field a value that its rule allows and that is not the default. For types with a codec of their own,
/// which have no table and are no lists, there is `void fill_sample(T&)` beside them or in the test.
class MessageFiller {
 public:
  /// @param wrong breaks one rule, the first for 0; none if negative.
  explicit MessageFiller(int wrong = -1) : wrong_(wrong) {}

  /// "Owner: 'field'" of the rule that was broken.
  const std::optional<std::string>& broken() const { return broken_; }

  template <class T>
  void fill(T& value, const base::Rule& rule = {}) {
    namespace message = base::message;
    if constexpr (std::same_as<T, bool>) {
      value = !value;
    } else if constexpr (std::integral<T> || std::is_enum_v<T>) {
      fill_number(value, rule);
    } else if constexpr (std::same_as<T, double>) {
      value += ++values_ + 0.5;
    } else if constexpr (std::same_as<T, message::Time>) {
      value += std::chrono::seconds{++values_};
    } else if constexpr (std::same_as<T, std::string>) {
      value += (rule.plain ? "text" : std::string("/\0\xFF", 3)) + std::to_string(++values_);
      if (rule.plain && breaks()) value = "a/b";
      if (rule.plain && breaks()) value = "a\nb";
      if (is_limited(rule.longest) && !rule.cut && breaks()) value = std::string(rule.longest + 1, 'x');
    } else if constexpr (std::same_as<T, Bytes>) {
      value.push_back(static_cast<std::byte>(++values_));
      if (is_limited(rule.longest) && breaks()) value.resize(rule.longest + 1);
    } else if constexpr (message::kIsByteArray<T>) {
      value.fill(static_cast<std::byte>(++values_));
    } else if constexpr (std::same_as<T, Error>) {
      ErrorDetail detail{};
      fill(detail);
      value = Error{std::move(detail)};
    } else if constexpr (message::HasOwnCodec<T> && !requires { value.resize(2); }) {
      fill_sample(value);
    } else if constexpr (message::IsTable<T>) {
      std::apply(
          [&](const auto&... field) {
            ((place_ = std::string(message::kTable<T>.heading.name) + ": '" + std::string(field.name) + "'",
              fill(value.*field.member, field.rule)),
             ...);
          },
          message::kTable<T>.fields);
    } else if constexpr (message::kIs<T, std::optional>) {
      fill(value.emplace(message::blank<typename T::value_type>()), rule);
    } else if constexpr (message::kIs<T, std::pair>) {
      fill(value.first, rule);
      fill(value.second, rule);
    } else if constexpr (message::kIs<T, std::map>) {
      std::pair<typename T::key_type, typename T::mapped_type> entry;
      fill(entry, rule);
      value.insert(std::move(entry));
    } else {
      if constexpr (requires { value.resize(2); }) {
        std::size_t size = std::clamp<std::size_t>(2, rule.fewest, rule.count);
        if (rule.fewest > 0 && breaks()) size = rule.fewest - 1;
        if (is_limited(rule.count) && breaks()) size = rule.count + 1;
        value.resize(size);
      }
      for (auto& element : value) fill(element, rule);
    }
  }

 private:
  template <class T>
  void fill_number(T& number, const base::Rule& rule) {
    using Int =
        typename std::conditional_t<std::is_enum_v<T>, std::type_identity<std::uint8_t>, std::type_identity<T>>::type;
    using Limits = std::numeric_limits<Int>;
    const bool has_least = rule.least > static_cast<std::int64_t>(Limits::min());
    const bool has_most = rule.most < base::Rule::kUnlimited &&
                          static_cast<std::uint64_t>(rule.most) < static_cast<std::uint64_t>(Limits::max());
    const auto least = has_least ? static_cast<Int>(rule.least) : Limits::min();
    const auto most = has_most ? static_cast<Int>(rule.most) : Limits::max();
    if (has_least && breaks()) {
      number = static_cast<T>(least - 1);
    } else if (has_most && breaks()) {
      number = static_cast<T>(most + 1);
    } else {
      const auto wanted = std::clamp(static_cast<Int>(++values_ % 100), least, most);
      number = static_cast<T>(static_cast<T>(wanted) != number ? wanted : wanted == most ? least : wanted + 1);
    }
  }

  static bool is_limited(std::size_t most) { return most < base::kAny.longest; }
  bool breaks() {
    if (rules_++ != wrong_) return false;
    broken_ = place_;
    return true;
  }

  int wrong_;
  int rules_ = 0;
  int values_ = 0;
  std::string place_;
  std::optional<std::string> broken_;
};

/// Every field filled, as MessageFiller does.
template <class T>
T sample_message() {
  T sample{};
  MessageFiller().fill(sample);
  return sample;
}

}  // namespace ddp::tests
