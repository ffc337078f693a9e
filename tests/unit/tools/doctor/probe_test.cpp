// Probes on this host, and what is said in the end.
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "doctor/probe.hpp"
#include "doctor/report.hpp"
#include "unit/tools/doctor/healthy_job.hpp"

namespace ddp::tools::doctor {
namespace {

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
                                                     "  n1, ranks 2-3: /dev/shm has 64 MiB, but 128 MiB are needed\n"
                                                     "    fix: mount -o remount,size=50% /dev/shm"));
  EXPECT_THAT(format_json(done), testing::AllOf(HasSubstr("\"rule\": \"shm-size\""), HasSubstr("\"errors\": 1")));
}

}  // namespace

// Trains of packets: over a link that is as slow as a relay makes it, and what is made of times.

namespace {

using std::chrono::seconds;

/// Passes packets of one sender on, not before the time that each would take on the wire, and answers at once.
class SlowRelay {
 public:
  SlowRelay(std::uint16_t to, std::int64_t mbps) : mbps_(mbps) {
    for (base::UniqueFd* each : {&front_, &back_}) {
      *each = base::UniqueFd{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
      SocketAddress any = SocketAddress::of("127.0.0.1", 0);
      EXPECT_EQ(::bind(each->get(), any.get(), any.length), 0);
      const int room = 1 << 20;
      ::setsockopt(each->get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    }
    SocketAddress there = SocketAddress::of("127.0.0.1", to);
    EXPECT_EQ(::connect(back_.get(), there.get(), there.length), 0);
    port_ = base::local_port(front_.get());
    forwards_ = std::thread([this] { forward(); });
    answers_ = std::thread([this] { answer(); });
  }
  ~SlowRelay() {
    stop_ = true;
    forwards_.join();
    answers_.join();
  }
  SlowRelay& operator=(SlowRelay&&) = delete;
  std::uint16_t port() const { return port_; }

 private:
  bool ready(int fd) const {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&waiting, 1, 20) == 1;
  }
  void forward() {
    std::vector<std::byte> packet(kLargestPacket);
    auto free_at = std::chrono::steady_clock::now();
    while (!stop_) {
      if (!ready(front_.get())) continue;
      SocketAddress from;
      from.length = sizeof from.storage;
      const ssize_t size = ::recvfrom(front_.get(), packet.data(), packet.size(), 0, from.get(), &from.length);
      if (size < 0) continue;
      {
        const std::lock_guard lock(mutex_);
        sender_ = from;
      }
      free_at = std::max(free_at, std::chrono::steady_clock::now()) + std::chrono::microseconds(size * 8 / mbps_);
      std::this_thread::sleep_until(free_at);
      ::send(back_.get(), packet.data(), static_cast<std::size_t>(size), 0);
    }
  }
  void answer() {
    std::array<std::byte, 256> reply{};
    while (!stop_) {
      if (!ready(back_.get())) continue;
      const ssize_t size = ::recv(back_.get(), reply.data(), reply.size(), 0);
      if (size <= 0) continue;
      SocketAddress to;
      {
        const std::lock_guard lock(mutex_);
        to = sender_;
      }
      ::sendto(front_.get(), reply.data(), static_cast<std::size_t>(size), 0, to.get(), to.length);
    }
  }

  const std::int64_t mbps_;
  base::UniqueFd front_;
  base::UniqueFd back_;
  std::mutex mutex_;
  SocketAddress sender_;  ///< known before the first answer comes
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::thread forwards_;
  std::thread answers_;
};

ProbeResult measure(const ProbeListener& listener, const Bytes& token) {
  InterfaceFacts own = test::loopback();
  own.rate_mbps = 100'000;
  const auto found = probe({{.to_node = 1, .listener = listener, .token = token}}, {own}, Deadline::after(seconds(20)));
  return found.at(0);
}

TEST(PacketTrain, ASlowPathIsMeasuredAndAFastOneIsFast) {
  const ProbeAnswers answers{
      {{.interface = "lo", .address = "127.0.0.1", .mtu = 1500, .rate_mbps = 10'000, .tcp_port = 0, .udp_port = 0}}};
  ProbeListener listener = answers.listeners().at(0);
  const ProbeResult fast = measure(listener, answers.token());
  EXPECT_EQ(fast.packet, PacketEnd::passed);
  EXPECT_EQ(fast.rate_mbps, 10'000);
  EXPECT_GE(fast.path_mbps, 200);  // not less, whatever else this machine does
  const SlowRelay relay(listener.udp_port, 50);
  listener.udp_port = relay.port();
  const ProbeResult slow = measure(listener, answers.token());
  EXPECT_EQ(slow.packet, PacketEnd::passed);
  // A relay that sleeps too long, and is then in a hurry, lets some trains through faster; one that is kept, slower.
  EXPECT_GE(slow.path_mbps, 1);
  EXPECT_LE(slow.path_mbps, 100);
}

TEST(PacketTrain, WithoutASpeedToCompareWithNoneIsSent) {
  EXPECT_TRUE(PacketTrains(0, 1500, 28).settled());
  EXPECT_TRUE(PacketTrains(1000, 40, 28).settled());
  EXPECT_FALSE(PacketTrains(1000, 1500, 28).settled());
}

struct Trains : ::testing::Test {
  const Bytes token_ = Bytes(kTokenBytes, std::byte{7});
  PacketTrains trains_{10'000, 1500, 28};
  std::uint32_t length_ = 0;
  std::uint32_t sent_ = 0;

  void send() {
    const Bytes train = trains_.next(token_);
    EXPECT_EQ(train.size() % trains_.packet_size(), 0U);
    EXPECT_LE(train.size(), 65'000U);
    length_ = static_cast<std::uint32_t>(train.size() / trains_.packet_size());
    ++sent_;
  }
  void answer(std::uint32_t place, std::int64_t at_ns) {
    trains_.answered({.arrived_bytes = 1472, .number = sent_ << 8U | place, .arrived_ns = at_ns});
  }
};

TEST_F(Trains, TheFastestCountsAndEndsThemIfItIsFastEnough) {
  send();
  for (std::uint32_t i = 0; i < length_; ++i) answer(i, 1'000 + i * 12'000);  // 1500 bytes in 12 us
  EXPECT_EQ(trains_.mbps(), 1000);
  EXPECT_FALSE(trains_.settled());
  send();
  for (std::uint32_t i = 0; i < length_; ++i) answer(i, 1'000 + i * 120'000);
  EXPECT_EQ(trains_.mbps(), 1000);
  send();
  for (std::uint32_t i = 0; i < length_; ++i) answer(i, 1'000);  // in one batch
  EXPECT_EQ(trains_.mbps(), kMostMeasurableMbps);
  EXPECT_TRUE(trains_.settled());
}

TEST_F(Trains, LostPacketsMakeThePathNoSlower) {
  send();
  for (std::uint32_t i = 5; i < length_; i += i == 6 ? 10 : 1) answer(i, 1'000 + i * 12'000);
  EXPECT_EQ(trains_.mbps(), 1000);
  send();
  for (std::uint32_t i = length_ - 3; i < length_; ++i) answer(i, 1'000 + i * 1'000);
  EXPECT_EQ(trains_.mbps(), 1000) << "three packets say too little";
}

TEST_F(Trains, TheyEndAfterAFewAndWithoutTimes) {
  for (int i = 0; i < PacketTrains::kMost; ++i) {
    EXPECT_FALSE(trains_.settled());
    send();
    answer(0, 1);
    answer(length_ - 1, 1'000'000'000);
  }
  EXPECT_TRUE(trains_.settled());
  EXPECT_EQ(trains_.mbps(), 1);
  PacketTrains blind{10'000, 1500, 28};
  static_cast<void>(blind.next(token_));
  blind.answered({.arrived_bytes = 1472, .number = 1U << 8U, .arrived_ns = 0});
  EXPECT_TRUE(blind.settled());
  EXPECT_EQ(blind.mbps(), 0);
}

TEST_F(Trains, AnswersToNothingChangeNothing) {
  for (const std::uint32_t number : {0U, 1U << 8U, 5U << 8U | 255U, ~0U}) {
    trains_.answered({.arrived_bytes = 1, .number = number, .arrived_ns = 1});
  }
  send();
  answer(length_, 5);
  answer(255, 6);
  EXPECT_EQ(trains_.mbps(), 0);
  EXPECT_FALSE(trains_.settled());
}

}  // namespace

}  // namespace ddp::tools::doctor
