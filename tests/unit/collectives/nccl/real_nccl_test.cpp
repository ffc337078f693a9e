// A real NCCL, where there is one: DDP_TEST_NCCL names its libnccl.so.2. Calls that need no device.
#include "collectives/nccl/nccl_library.hpp"
#include "support/sanitized.hpp"

namespace ddp::collectives::nccl {
namespace {

TEST(RealNccl, HasTheFunctionsOfItsVersion) {
  if (::ddp::test::kSanitized) GTEST_SKIP() << "NCCL is not instrumented";
  const char* file = std::getenv("DDP_TEST_NCCL");
  if (file == nullptr) GTEST_SKIP() << "DDP_TEST_NCCL names no libnccl.so.2";
  const NcclLibrary nccl{{.program = "", .environment = base::Environment{{{"DDP_NCCL_LIBRARY", file}}}}};
  SCOPED_TRACE(version_text(nccl.version()));
  each_function([&](auto member, const char* name, int since) {
    EXPECT_EQ(nccl.functions().*member == nullptr, since > nccl.version()) << name;
  });
  EXPECT_STREQ(nccl->get_error_string(ncclRemoteError), "remote process exited or there was a network error");
  ncclUniqueId id{};
  EXPECT_EQ(nccl->get_unique_id(&id), ncclSuccess) << nccl.last_error(nullptr);
  EXPECT_NE(std::memcmp(id.internal, ncclUniqueId{}.internal, sizeof id.internal), 0);
  // The first checks of the arguments are before the first use of a device.
  int number = 0;
  EXPECT_EQ(nccl->comm_count(nullptr, &number), ncclInvalidArgument);
  EXPECT_EQ(nccl->all_reduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, nullptr, nullptr), ncclInvalidArgument);
  EXPECT_THAT(nccl.last_error(nullptr), ::testing::HasSubstr("comm"));
  EXPECT_EQ(nccl->group_start(), ncclSuccess);
  EXPECT_EQ(nccl->group_end(), ncclSuccess);
  EXPECT_EQ(nccl->group_end(), ncclInvalidUsage);
}

}  // namespace
}  // namespace ddp::collectives::nccl
