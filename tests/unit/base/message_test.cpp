// Described messages: their bytes, what is refused, and that a table lists all members.
#include "base/message.hpp"

#include "support/error_of.hpp"
#include "support/message_check.hpp"

namespace ddp::base {
namespace sample {

enum class Colour : std::uint8_t { red, green, blue };

struct Point {
  std::int16_t x = 0;
  std::uint8_t y = 0;
};
constexpr auto description(const Point*) {
  return describe({"point"}, fields<&Point::x>(Rule{.least = -2, .most = 200}), fields<&Point::y>());
}

struct Circle {
  Point middle{};
  double radius = 0;
};
constexpr auto description(const Circle*) { return describe({"circle"}, fields<&Circle::middle, &Circle::radius>()); }

using Shape = std::variant<Point, std::monostate, Circle>;
constexpr auto description(const Shape*) { return describe({"shape", 1}); }

struct Everything {
  bool flag = true;
  char letter = 'a';
  std::uint64_t large = 0;
  std::int64_t small = 0;
  Colour colour = Colour::red;
  std::string name{};
  std::string shortened{};
  Bytes bytes{};
  message::Time time{};
  std::array<std::byte, 3> key{};
  std::array<int, 2> pair{};
  std::vector<Point> points{};
  std::optional<Circle> circle{};
  std::map<std::string, std::string> variables{};
  std::vector<std::pair<std::string, int>> settings{};
  ErrorDetail error{.code = ErrorCode::system};
  int kept = 1;
};
constexpr auto description(const Everything*) {
  using T = Everything;
  return describe({.name = "everything", .version = 7, .most_bytes = 2000, .shorten = "say less", .unsent = 1},
                  fields<&T::flag, &T::letter, &T::time, &T::key, &T::circle, &T::variables, &T::error>(),
                  fields<&T::large>(Rule{.least = 1}), fields<&T::small>(kCount),
                  fields<&T::colour>(kUpTo<Colour::blue>), fields<&T::name>(kPlainName),
                  fields<&T::shortened>(Rule{.longest = 5, .cut = true}), fields<&T::bytes>(Rule{.longest = 9}),
                  fields<&T::pair>(kExitStatus), fields<&T::points>(Rule{.fewest = 1, .count = 3}),
                  fields<&T::settings>(kCountOrNone));
}

}  // namespace sample
namespace {

using namespace sample;

TEST(Message, ComesBackAndRefusesWhatItsTableDoesNotAllow) {
  tests::check_message<Point>();
  tests::check_message<Circle>();
  tests::check_message<Everything>();
  tests::check_message<ErrorDetail>();
}

TEST(Message, HasTheBytesOfItsFieldsInOrder) {
  EXPECT_EQ(encode(Point{.x = -2, .y = 3}), to_bytes(std::string_view("\xFE\xFF\x03", 3)));
  EXPECT_EQ(encode(Shape{Point{.x = 1, .y = 2}}), to_bytes(std::string_view("\1\0\1\0\2", 5)));
  const Bytes circle = encode(Shape{Circle{.middle = {.x = 1, .y = 2}, .radius = 1.0}});
  EXPECT_EQ(circle, to_bytes(std::string_view("\1\2\1\0\2\0\0\0\0\0\0\xF0\x3F", 13)));
}

TEST(Message, KeepsEveryValue) {
  const auto before = tests::sample_message<Everything>();
  const auto after = decode<Everything>(encode(before));
  EXPECT_EQ(after.letter, before.letter);
  EXPECT_EQ(after.name, before.name);
  EXPECT_EQ(after.shortened, before.shortened.substr(0, 5));
  EXPECT_EQ(after.time, before.time);
  EXPECT_EQ(after.variables, before.variables);
  EXPECT_EQ(after.settings, before.settings);
  EXPECT_EQ(after.circle->radius, before.circle->radius);
  EXPECT_EQ(after.error.ranks, before.error.ranks);
  EXPECT_EQ(after.kept, 1);
  Everything extreme{.large = std::numeric_limits<std::uint64_t>::max(),
                     .small = std::numeric_limits<std::int64_t>::max(),
                     .points = {{}}};
  EXPECT_EQ(decode<Everything>(encode(extreme)).large, extreme.large);
  EXPECT_EQ(decode<Everything>(encode(extreme)).small, extreme.small);
}

TEST(Message, NamesTheFieldThatIsRefused) {
  const auto refused = [](const auto& message) {
    return tests::refusal_of<std::remove_cvref_t<decltype(message)>>(encode(message));
  };
  EXPECT_THAT(refused(Point{.x = 201}),
              HasSubstr("reading the point: point: 'x' is 201, which is not between -2 and 200; "
                        "do all ranks run the same version of libddp?"));
  EXPECT_THAT(refused(Circle{.middle = {.x = -3}}), HasSubstr("reading the circle: point: 'x' is -3"));
  EXPECT_THAT(refused(Circle{.radius = std::nan("")}), HasSubstr("circle: 'radius' is not a finite number"));
  EXPECT_THAT(refused(Circle{.radius = -INFINITY}), HasSubstr("circle: 'radius' is not a finite number"));
  EXPECT_THAT(refused(Everything{.large = 1, .name = std::string(256, 'n'), .points = {{}}}),
              HasSubstr("'name' is longer than 255 bytes"));
  EXPECT_THAT(refused(Everything{.large = 1}), HasSubstr("everything: 'points' has 0 elements, not 1 to 3"));
}

TEST(Message, AFlagIsZeroOrOne) {
  Bytes bytes = encode(tests::sample_message<Everything>());
  bytes[1] = std::byte{2};
  EXPECT_THAT(tests::refusal_of<Everything>(bytes), HasSubstr("everything: 'flag' is 2, which is not between 0 and 1"));
}

TEST(Message, KindsThatAreNotDescribedAreRefused) {
  EXPECT_THAT(tests::refusal_of<Shape>(encode(Shape{std::monostate{}})),
              HasSubstr("reading the shape: there is no message of kind 1"));
  EXPECT_THAT(tests::refusal_of<Shape>(to_bytes("\1\3")), HasSubstr("no message of kind 3"));
}

TEST(Message, ACountWithoutElementsTakesNoMemory) {
  Bytes bytes = encode(ErrorDetail{});
  const std::size_t ranks = bytes.size() - 8;  // the count before the hint's length
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(ranks), 4, std::byte{0xFF});
  EXPECT_THAT(tests::refusal_of<ErrorDetail>(bytes), HasSubstr("the message ends after 0 bytes"));
}

TEST(Message, OneThatIsTooLargeIsNotSent) {
  Everything large{.points = {{}}};
  large.variables["NAME"] = std::string(2000, 'x');
  const Error error = test::thrown_by([&] { encode(large); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), testing::MatchesRegex("sending the everything: it has .* bytes, more than 2000; say less"));
  EXPECT_THAT(tests::refusal_of<Everything>(Bytes(2001)), HasSubstr("it has 2001 bytes, more than 2000"));
}

TEST(Message, ATableListsAllMembers) {
  EXPECT_EQ(message::count_members<Point>(), 2);
  EXPECT_EQ(message::count_members<ErrorDetail>(), 6);
  EXPECT_EQ(message::count_members<Everything>(), 17);
}

}  // namespace
}  // namespace ddp::base
