// Checks a described message by its own table: it comes back as it was, and what the table does not allow is refused.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/message.hpp"

namespace ddp::tests {

/// Gives every field a value that its rule allows and that is not the default. For types with a codec of their own,
/// which have no table, there is `void fill_sample(T&)` beside them or in the test.
class MessageFiller {
 public:
  /// @param wrong breaks one rule, the first for 0; none if negative.
  explicit MessageFiller(int wrong = -1) : wrong_(wrong) {}

  /// "Owner: 'field'" of the rule that was broken.
  const std::optional<std::string>& broken() const { return broken_; }

  template <base::message::IsTable T>
  void fill(T& described, base::Rule /*rule*/ = {}) {
    constexpr auto kTable = description(static_cast<const T*>(nullptr));
    std::apply(
        [&](const auto&... field) {
          ((place_ = std::string(kTable.heading.name) + ": '" + std::string(field.name) + "'",
            fill(described.*field.member, field.rule)),
           ...);
        },
        kTable.fields);
  }

 private:
  void fill(bool& flag, const base::Rule& /*rule*/) { flag = !flag; }
  void fill(double& number, const base::Rule& /*rule*/) { number += ++values_ + 0.5; }
  void fill(base::message::Time& time, const base::Rule& /*rule*/) { time += std::chrono::seconds{++values_}; }

  template <class T>
  requires std::integral<T> || std::is_enum_v<T>
  void fill(T& number, const base::Rule& rule) {
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
  void fill(std::string& text, const base::Rule& rule) {
    text += (rule.plain ? "text" : std::string("/\0\xFF", 3)) + std::to_string(++values_);
    if (rule.plain && breaks()) text = "a/b";
    if (rule.plain && breaks()) text = "a\nb";
    if (is_limited(rule.longest) && !rule.cut && breaks()) text = std::string(rule.longest + 1, 'x');
  }
  void fill(Bytes& bytes, const base::Rule& rule) {
    bytes.push_back(static_cast<std::byte>(++values_));
    if (is_limited(rule.longest) && breaks()) bytes.resize(rule.longest + 1);
  }
  template <class T>
  void fill(std::vector<T>& list, const base::Rule& rule) {
    std::size_t size = std::clamp<std::size_t>(2, rule.fewest, rule.count);
    if (rule.fewest > 0 && breaks()) size = rule.fewest - 1;
    if (is_limited(rule.count) && breaks()) size = rule.count + 1;
    list.resize(size);
    for (T& element : list) fill(element, rule);
  }
  template <class T, std::size_t size>
  void fill(std::array<T, size>& list, const base::Rule& rule) {
    if constexpr (std::same_as<T, std::byte>) {
      list.fill(static_cast<std::byte>(++values_));
    } else {
      for (T& element : list) fill(element, rule);
    }
  }
  template <class T>
  void fill(std::optional<T>& optional, const base::Rule& rule) {
    fill(optional.emplace(), rule);
  }
  template <class Key, class T, class Less>
  void fill(std::map<Key, T, Less>& map, const base::Rule& rule) {
    std::pair<Key, T> entry;
    fill(entry, rule);
    map.insert(std::move(entry));
  }
  template <class First, class Second>
  void fill(std::pair<First, Second>& pair, const base::Rule& rule) {
    fill(pair.first, rule);
    fill(pair.second, rule);
  }
  template <base::message::HasOwnCodec T>
  void fill(T& value, const base::Rule& /*rule*/) {
    fill_sample(value);
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

/// Why decode() refuses @p bytes; empty if it does not.
template <class T>
std::string refusal_of(const Bytes& bytes) {
  try {
    base::decode<T>(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    return error.what();
  }
  return {};
}

template <class T>
void check_message() {
  using testing::HasSubstr;
  constexpr base::Heading kHeading = description(static_cast<const T*>(nullptr)).heading;
  SCOPED_TRACE(kHeading.name);
  const Bytes whole = base::encode(sample_message<T>());
  EXPECT_NE(whole, base::encode(T{}));
  EXPECT_EQ(base::encode(base::decode<T>(whole)), whole);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(refusal_of<T>({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}),
                HasSubstr("the message ends after"))
        << size;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THAT(refusal_of<T>(longer), HasSubstr("has 1 bytes too many"));
  if (kHeading.version != 0) {
    Bytes other = whole;
    other[0] = static_cast<std::byte>(kHeading.version + 1);
    EXPECT_THAT(refusal_of<T>(other), HasSubstr("this libddp knows " + std::to_string(kHeading.version)));
  }
  for (int rule = 0;; ++rule) {
    T wrong{};
    MessageFiller filler(rule);
    filler.fill(wrong);
    if (!filler.broken()) break;
    EXPECT_THAT(refusal_of<T>(base::encode(wrong)), HasSubstr(*filler.broken()));
  }
}

}  // namespace ddp::tests
