// Calls of CUDA's driver and of NCCL that fail, or never come back: how NcclBackend tells it, and what it leaves
// behind.
#include <gmock/gmock.h>

#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class NcclErrors : public NcclTest {
 protected:
  void TearDown() override {
    FAKE_CUDA(fake_cuda_clear_faults)();
    NcclTest::TearDown();
  }
  /// Runs one operation, which @p native must end, and ends the group.
  static void run_failing(DeviceGroup& group, int rank, const Call& what, const char* native) {
    DeviceCall call = group.call(rank, what, 2);
    call.fill(group.own(rank).stream.get());
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    request.post();
    EXPECT_EQ(poll_until_end(request), Outcome::peers_failed) << native;
    EXPECT_EQ(request.failure().native, native) << request.failure().cause;
    EXPECT_NE(request.failure().cause, "");
    group.at(rank).abort();
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
  }
};

/// The records are of the caller's work before it, of its begin and of its end.
TEST_F(NcclErrors, AnErrorOfTheDriverEndsTheOperationAndIsToldByName) {
  for (const char* fault : {"cuEventQuery=fail:719", "cuStreamWaitEvent=fail:719", "cuEventRecord#1=fail:719",
                            "cuEventRecord#2=fail:719", "cuEventRecord#3=fail:719"}) {
    SCOPED_TRACE(fault);
    DeviceGroup group(1);
    group.on_all([&](int rank) {
      group.run_call(rank, all_reduce_of(10), 1);
      ASSERT_EQ(FAKE_CUDA(fake_cuda_add_faults)(fault), 1);
      run_failing(group, rank, all_reduce_of(10), "CUDA_ERROR_LAUNCH_FAILED (719)");
      FAKE_CUDA(fake_cuda_clear_faults)();
    });
  }
}

/// A group of NCCL's that is left open makes it queue all later calls of the thread in silence.
TEST_F(NcclErrors, ARefusedCallIsToldByNameAndTheThreadCanUseOtherGroups) {
  struct Refusal {
    const char* fault;
    bool connected;
    double prescale;
    const char* native;
  };
  for (const Refusal& refusal :
       {Refusal{"AllReduce#1=fail:ncclInvalidUsage", true, 1, "ncclInvalidUsage (5)"},
        Refusal{"RedOpCreatePreMulSum#1=fail:ncclInternalError", true, 0.5, "ncclInternalError (3)"},
        Refusal{"CommInitRankConfig#1=fail:ncclSystemError", false, 1, "ncclSystemError (2)"}}) {
    SCOPED_TRACE(refusal.fault);
    faults("");
    DeviceGroup group(2, "refused");
    DeviceGroup other(2, "other");
    if (refusal.connected) group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
    faults(refusal.fault);
    Call refused = all_reduce_of(10);
    refused.prescale = refusal.prescale;
    group.on_all([&](int rank) {
      run_failing(group, rank, refused, refusal.native);
      other.run_call(rank, refused, 1);
    });
  }
}

TEST_F(NcclErrors, ACloseWhoseCallsHangReturnsAndWarns) {
  for (const char* hangs : {"CommFinalize=hang,CommAbort=hang", "CommDestroy=hang"}) {
    SCOPED_TRACE(hangs);
    faults("");
    BackendRanks group(nccl_ranks(2), "closing");
    group.on_all([&](int rank) { ASSERT_EQ(run(group.at(rank), Operation{}).outcome, Outcome::ok); });
    faults(hangs);
    ::testing::internal::CaptureStderr();
    group.on_all([&](int rank) { group.at(rank).close(Deadline::after(milliseconds(300))); });
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("group 'closing': NCCL did not end its communicator in time"));
    for (int rank = 0; rank < group.size(); ++rank) group.kill(rank);
    FAKE_NCCL(fake_nccl_release)();
  }
}

/// NCCL lets the environment go before what a program asks for.
TEST_F(NcclErrors, WarnsWhereTheEnvironmentMakesNcclBlock) {
  for (const auto& [value, warnings] : {std::pair{"1", 1}, std::pair{"0", 0}}) {
    setenv("NCCL_COMM_BLOCKING", value, 1);
    ::testing::internal::CaptureStderr();
    { const BackendRanks group(nccl_ranks(2), "blocking"); }
    const std::string said = ::testing::internal::GetCapturedStderr();
    unsetenv("NCCL_COMM_BLOCKING");
    const std::string warning = "group 'blocking': NCCL_COMM_BLOCKING=1 makes NCCL block";
    const auto first = said.find(warning);
    EXPECT_EQ(first != std::string::npos, warnings == 1) << said;
    EXPECT_EQ(said.rfind(warning), first) << "by one rank only: " << said;
  }
}

}  // namespace
}  // namespace ddp::collectives::testing
