// Checks a described message by its own table: it comes back as it was, and what the table does not allow is refused.
#pragma once

#include "support/message_filler.hpp"

namespace ddp::tests {

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
