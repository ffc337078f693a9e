// Known values of FNV-1a, since ranks and processes of several builds compare them.
#include "base/fnv1a.hpp"

#include <gtest/gtest.h>

#include <array>

namespace ddp::base {
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
