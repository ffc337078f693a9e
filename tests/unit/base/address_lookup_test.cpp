// Name resolution with a deadline, against a resolver that this file stands in for.
#include "base/address_lookup.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include <ddp/error.hpp>

// For one name it hangs for good, as with dead name servers or a stuck directory service.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* wanted, addrinfo** found) {
  const bool numeric = wanted != nullptr && (wanted->ai_flags & AI_NUMERICHOST) != 0;
  while (!numeric && host != nullptr && std::string(host) == "hanging.invalid") ::sleep(3600);
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host, service, wanted, found);
}

namespace ddp::base {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

std::optional<Error> problem_of(const std::string& host, int flags, Deadline deadline) {
  try {
    resolve(host, 80, flags, "connecting to the store", deadline);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

TEST(AddressLookup, AResolverThatHangsIsNotWaitedFor) {
  const auto begin = Deadline::Clock::now();
  const auto error = problem_of("hanging.invalid", AI_ADDRCONFIG, Deadline::after(milliseconds(200)));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
  EXPECT_THAT(error->what(), HasSubstr("connecting to the store"));
  EXPECT_THAT(error->cause(), HasSubstr("'hanging.invalid'"));
  EXPECT_THAT(error->hint(), HasSubstr("resolv.conf"));
}

TEST(AddressLookup, NumericAddressesNeedNoResolver) {
  const Deadline past = Deadline::after(seconds(0));
  for (const char* host : {"127.0.0.1", "::1", "192.0.2.7"}) {
    EXPECT_FALSE(problem_of(host, AI_ADDRCONFIG, past)) << host;
    EXPECT_FALSE(problem_of(host, AI_NUMERICHOST, past)) << host;
  }
  const auto error = problem_of("hanging.invalid", AI_NUMERICHOST, past);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error->cause(), HasSubstr("not a numeric address"));
}

TEST(AddressLookup, NamesAreResolved) {
  EXPECT_FALSE(problem_of("localhost", 0, Deadline::after(seconds(30))));
  const auto error = problem_of("no such host.invalid", 0, Deadline::after(seconds(60)));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ddp::base
