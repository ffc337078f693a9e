// Probes on this host, and what is said in the end.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "base/unique_fd.hpp"
#include "doctor/probe.hpp"
#include "doctor/report.hpp"
#include "unit/tools/doctor/healthy_job.hpp"

namespace ddp::tools::doctor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DoctorProbe, PacketsReachWhoAnswersAndNobodyElse) {
  const std::vector<InterfaceFacts> own{test::loopback()};
  const ProbeAnswers answers{
      {{.interface = "lo", .address = "127.0.0.1", .mtu = 9000, .rate_mbps = 0, .tcp_port = 0, .udp_port = 0}}};
  ASSERT_EQ(answers.listeners().size(), 1U);
  const ProbeTarget target{.to_node = 3, .listener = answers.listeners()[0], .token = answers.token()};
  ProbeTarget stranger = target;
  stranger.token = Bytes(answers.token().size(), std::byte{0});
  ProbeTarget nobody = target;
  nobody.listener.tcp_port = 1;
  nobody.listener.udp_port = 1;
  const auto good = probe({target}, own, Deadline::after(std::chrono::seconds(60)));
  ASSERT_EQ(good.size(), 1U);
  EXPECT_EQ(good[0].to_node, 3);
  EXPECT_EQ(good[0].end, ProbeEnd::reached);
  EXPECT_EQ(good[0].packet, PacketEnd::passed);
  EXPECT_EQ(good[0].packet_bytes, 9000);  // the smaller of both MTUs
  const auto bad = probe({stranger, nobody}, own, Deadline::after(std::chrono::milliseconds(300)));
  ASSERT_EQ(bad.size(), 2U);
  EXPECT_EQ(bad[0].packet, PacketEnd::untested);
  EXPECT_EQ(bad[1].end, ProbeEnd::refused);
  EXPECT_THAT(probed_nodes(3, 4), ElementsAre(0, 1, 2));
  EXPECT_THAT(probed_nodes(0, 100), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(probed_nodes(0, 1), ElementsAre());
}

// Where the kernel or a router says that a packet is too large, senders learn it: only silence is a fault.
TEST(DoctorProbe, APacketThatIsRefusedAloudIsNotLost) {
  const pid_t child = ::fork();
  if (child == 0) {  // a network of its own, with a smaller MTU than both sides believe
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) ::_exit(77);
    const base::UniqueFd fd{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    ifreq request{};
    request.ifr_name[0] = 'l';
    request.ifr_name[1] = 'o';
    request.ifr_mtu = 1500;
    if (::ioctl(fd.get(), SIOCSIFMTU, &request) != 0) ::_exit(77);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (::ioctl(fd.get(), SIOCSIFFLAGS, &request) != 0) ::_exit(77);
    const ProbeAnswers answers{
        {{.interface = "lo", .address = "127.0.0.1", .mtu = 9000, .rate_mbps = 0, .tcp_port = 0, .udp_port = 0}}};
    const ProbeTarget target{.to_node = 1, .listener = answers.listeners().at(0), .token = answers.token()};
    const auto found = probe({target}, {test::loopback()}, Deadline::after(std::chrono::seconds(3)));
    ::_exit(found.at(0).end == ProbeEnd::reached && found.at(0).packet == PacketEnd::untested ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs a network namespace";
  EXPECT_EQ(status, 0);
}

TEST(DoctorReport, SaysTheVerdictFirst) {
  JobFacts job = test::healthy_job();
  Examination done{.job = &job, .rules = 7, .time = std::chrono::milliseconds(120)};
  EXPECT_EQ(format_text(done), "ok: 2 nodes, 4 ranks, 7 rules, 0.12 s\n");
  job.nodes[1].facts.shm_bytes = 64 << 20;
  job.ranks[1].memlock_bytes = 65536;
  done.findings = test::findings_of(job);
  EXPECT_THAT(format_text(done), testing::StartsWith("1 error, 1 warning: 2 nodes, 4 ranks, 7 rules, 0.12 s\n"
                                                     "error shm-size: /dev/shm is too small\n"
                                                     "  n1, ranks 2-3: /dev/shm has 64 MiB, where 128 MiB are needed\n"
                                                     "    fix: mount -o remount,size=50% /dev/shm"));
  EXPECT_THAT(format_json(done), testing::AllOf(HasSubstr("\"rule\": \"shm-size\""), HasSubstr("\"errors\": 1")));
}

}  // namespace
}  // namespace ddp::tools::doctor
