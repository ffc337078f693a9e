// Reading and writing small binary messages: exact bytes, and refusal of everything that is cut or too long.
#include "base/byte_stream.hpp"
#include "support/error_of.hpp"

namespace ddp::base {
namespace {

Bytes sample() {
  return ByteWriter()
      .integer(std::uint8_t{0xab})
      .integer(std::int16_t{-2})
      .integer(std::uint32_t{0x01020304})
      .integer(std::int64_t{-5})
      .text("host")
      .blob(to_bytes(""))
      .raw(to_bytes("xy"))
      .bytes();
}

void read_sample(std::span<const std::byte> bytes) {
  ByteReader reader(bytes, "sample");
  EXPECT_EQ(reader.integer<std::uint8_t>(), 0xab);
  EXPECT_EQ(reader.integer<std::int16_t>(), -2);
  EXPECT_EQ(reader.integer<std::uint32_t>(), 0x01020304U);
  EXPECT_EQ(reader.integer<std::int64_t>(), -5);
  EXPECT_EQ(reader.text(), "host");
  EXPECT_TRUE(reader.blob().empty());
  EXPECT_EQ(to_text(reader.raw(2)), "xy");
  reader.expect_end();
}

TEST(ByteStream, IsLittleEndian) {
  const Bytes bytes = ByteWriter().integer(std::uint32_t{0x01020304}).integer(std::int16_t{-2}).text("a").bytes();
  const Bytes expected = to_bytes(std::string_view("\x04\x03\x02\x01\xfe\xff\x01\0\0\0a", 11));
  EXPECT_EQ(bytes, expected);
}

TEST(ByteStream, ReadsWhatItWrote) { read_sample(sample()); }

TEST(ByteStream, KeepsTheExtremesOfEveryType) {
  const auto check = []<class Int>(Int) {
    for (const Int value : {std::numeric_limits<Int>::min(), Int{0}, Int{1}, std::numeric_limits<Int>::max()}) {
      const Bytes bytes = ByteWriter().integer(value).bytes();
      EXPECT_EQ(bytes.size(), sizeof(Int));
      EXPECT_EQ(ByteReader(bytes, "integer").template integer<Int>(), value);
    }
  };
  check(std::int8_t{});
  check(std::uint8_t{});
  check(std::int16_t{});
  check(std::uint16_t{});
  check(std::int32_t{});
  check(std::uint32_t{});
  check(std::int64_t{});
  check(std::uint64_t{});
}

TEST(ByteStream, EveryCutIsRefused) {
  const Bytes whole = sample();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // a heap copy of exactly this size, so that the address sanitizer sees any read past the end
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const auto error = test::error_of([&] { read_sample(cut); });
    ASSERT_TRUE(error) << size << " of " << whole.size() << " bytes were accepted";
    EXPECT_EQ(error->code(), ErrorCode::protocol);
    EXPECT_EQ(error->attempted(), "reading the sample");
  }
}

TEST(ByteStream, BytesTooManyAreRefused) {
  Bytes bytes = sample();
  bytes.push_back(std::byte{0});
  EXPECT_THROW(read_sample(bytes), Error);
}

TEST(ByteStream, HostileLengthsNeitherReadNorAllocate) {
  for (const std::uint32_t announced : {5U, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
    const Bytes bytes = ByteWriter().integer(announced).raw(to_bytes("four")).bytes();
    EXPECT_THROW(ByteReader(bytes, "blob").blob(), Error) << announced;
    EXPECT_THROW(static_cast<void>(ByteReader(bytes, "text").text()), Error) << announced;
  }
  EXPECT_THROW(ByteReader({}, "raw").raw(std::numeric_limits<std::size_t>::max()), Error);
}

TEST(ByteStream, AFailedReadConsumesNothing) {
  const Bytes bytes = to_bytes("abc");
  ByteReader reader(bytes, "sample");
  EXPECT_THROW(reader.integer<std::uint32_t>(), Error);
  EXPECT_EQ(reader.left(), 3U);
  EXPECT_EQ(to_text(reader.raw(3)), "abc");
}

TEST(ByteStream, TextMayHoldAnyBytes) {
  const std::string text("\0\xff\n", 3);
  EXPECT_EQ(ByteReader(ByteWriter().text(text).bytes(), "text").text(), text);
  EXPECT_EQ(to_text(to_bytes(text)), text);
}

}  // namespace

// Known values of FNV-1a, since ranks and processes of several builds compare them.

namespace {

TEST(Fnv1a, HasTheKnownValues) {  // the test vectors of the reference implementation
  EXPECT_EQ(Fnv1a().value(), 0xcbf29ce484222325U);
  EXPECT_EQ(Fnv1a().add("a").value(), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(Fnv1a().add("foobar").value(), 0x85944171f73967e8U);
}

TEST(Fnv1a, PartsMakeTheWhole) {
  EXPECT_EQ(Fnv1a().add("foo").add("bar").value(), Fnv1a().add("foobar").value());
  const std::array<std::byte, 8> bytes{std::byte{0x62}, std::byte{0x61}};
  EXPECT_EQ(Fnv1a().add(std::uint64_t{0x6162}).value(), Fnv1a().add(bytes).value()) << "the lowest byte first";
}

}  // namespace

}  // namespace ddp::base
