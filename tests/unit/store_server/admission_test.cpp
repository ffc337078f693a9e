// Only addresses of the job are let in: those of the list, and those that prove themselves later.
#include "store_server/admission.hpp"

#include <gtest/gtest.h>

#include <string>

#include <ddp/error.hpp>

namespace ddp::store_server {
namespace {

PeerAddress address(const std::string& text) {
  const auto parsed = PeerAddress::parse(text);
  EXPECT_TRUE(parsed) << text;
  return parsed.value_or(PeerAddress{});
}

TEST(Admission, AllWithoutAList) {
  EXPECT_TRUE(Admission({.allowed = {}}).admits(address("203.0.113.9")));
  EXPECT_TRUE(Admission({.allowed = {}, .loopback = false}).admits(address("127.0.0.1")));
}

TEST(Admission, OnlyTheListAndLoopback) {
  const Admission admission({.allowed = {"::ffff:10.0.0.2", "2001:db8::1", "10.0.0.1"}});
  for (const std::string text : {"10.0.0.1", "10.0.0.2", "2001:db8::1", "::1", "127.0.0.1"}) {
    EXPECT_TRUE(admission.admits(address(text))) << text;
  }
  for (const std::string text : {"10.0.0.3", "2001:db8::2", "::"}) {
    EXPECT_FALSE(admission.admits(address(text))) << text;
  }
}

TEST(Admission, LoopbackMayHaveToBeOnTheListToo) {
  const Admission admission({.allowed = {"10.0.0.1", "127.0.0.2"}, .loopback = false});
  EXPECT_TRUE(admission.admits(address("10.0.0.1")));
  EXPECT_TRUE(admission.admits(address("127.0.0.2")));
  EXPECT_FALSE(admission.admits(address("127.0.0.1")));
  EXPECT_FALSE(admission.admits(address("::1")));
}

TEST(Admission, ByProofAnEmptyListAdmitsNothing) {
  Admission admission({.allowed = {}, .by_proof = true, .loopback = false});
  for (const std::string text : {"10.0.0.1", "127.0.0.1", "2001:db8::1"}) {
    EXPECT_FALSE(admission.admits(address(text))) << text;
  }
  admission.admit(address("10.0.0.1"));
  EXPECT_TRUE(admission.admits(address("::ffff:10.0.0.1")));
  EXPECT_FALSE(admission.admits(address("10.0.0.2")));
  EXPECT_TRUE(Admission({.allowed = {}, .by_proof = true}).admits(address("::1")));
}

TEST(Admission, AListWithSomethingElseIsAnError) {
  try {
    Admission({.allowed = {"10.0.0.1", "node2"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string{error.what()}.find("'node2'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ddp::store_server
