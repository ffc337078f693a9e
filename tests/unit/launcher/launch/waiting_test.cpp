// What is said while nodes do not come, and where TMPDIR is not there.
#include "launch/waiting_hint.hpp"

#include "launch/launch.hpp"

namespace ddp::launcher {
namespace {

RoleDecision endpoint() { return {.role = LaunchRole::endpoint, .nodes = {.min = 3, .max = 3}}; }

TEST(WaitingHint, OutsideAnAllocationSallocWasPerhapsMeant) {
  std::string name = testing::TempDir() + "waiting_XXXXXX";
  const std::filesystem::path folder{::mkdtemp(name.data())};
  LaunchOptions options;
  options.nodes = {.min = 3, .max = 3};
  const base::Environment environment{{{"PATH", folder.string()}}};
  EXPECT_THAT(waiting_hint(options, endpoint(), environment), AllOf(HasSubstr("--node-rank"), HasSubstr("-H")));
  std::ofstream{folder / "salloc"} << "#!/bin/sh\n";
  ::chmod((folder / "salloc").c_str(), 0755);
  EXPECT_THAT(waiting_hint(options, endpoint(), environment), HasSubstr("did you mean 'salloc --nodes=3 ddprun ...'?"));
  options.rendezvous.node_rank = 0;
  options.rendezvous.master_addr_given = true;
  options.rendezvous.master_addr = "n0";
  EXPECT_THAT(waiting_hint(options, endpoint(), environment), IsEmpty());
  std::filesystem::remove_all(folder);
}

TEST(WaitingHint, AnEndpointThatIsEveryHostsOwnIsNamed) {
  for (const char* host :
       {"localhost", "LOCALHOST", "localhost.localdomain", "127.0.0.1", "127.1.2.3", "::1", "ip6-localhost"}) {
    EXPECT_THAT(own_endpoint_remark(host), AllOf(HasSubstr(host), HasSubstr("each host's own"))) << host;
  }
  for (const char* host : {"n0", "10.0.0.1", "fd00::1", "localhosts", "my-localhost"}) {
    EXPECT_THAT(own_endpoint_remark(host), IsEmpty()) << host;
  }
  LaunchOptions options;
  options.rendezvous.endpoint_host = "localhost";
  EXPECT_THAT(waiting_hint(options, endpoint(), base::Environment{{}}),
              HasSubstr("only ddpruns of this host reach it"));
}

TEST(WaitingHint, AJobThatHasEndedHasARemedy) {
  EXPECT_THAT(stale_job_hint(base::Environment{{{"SLURM_JOB_ID", "99"}}}),
              AllOf(HasSubstr("job 99 has ended"), HasSubstr("unset"), HasSubstr("--standalone")));
}

TEST(WaitNotice, SpeaksOnceAfterTheSilenceOnly) {
  std::atomic<int> lines = 0;
  const auto say = [&](const std::string& line) {
    EXPECT_EQ(line, "ddprun: waiting for n1");
    ++lines;
  };
  const auto text = [] { return std::string("waiting for n1"); };
  { const WaitNotice quick{text, 1h, say}; }
  EXPECT_EQ(lines, 0);
  const WaitNotice slow{text, 1ms, say};
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (lines == 0 && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(lines, 1);
}

TEST(WaitNotice, DurationsAreForReaders) {
  EXPECT_EQ(duration_text(4'200ms), "5 s");
  EXPECT_EQ(duration_text(600s), "10 min");
  EXPECT_EQ(duration_text(895s), "14 min 55 s");
}

TEST(TemporaryFolder, OneThatIsNotThereIsLeft) {
  for (const char* folder : {"/nonexistent/job.1", "/dev/null/tmp"}) {
    ::setenv("TMPDIR", folder, 1);
    base::Environment environment{{{"TMPDIR", folder}, {"A", "1"}}};
    EXPECT_THAT(leave_missing_temporary_folder(environment), AllOf(HasSubstr(folder), HasSubstr("/tmp")));
    EXPECT_EQ(temporary_folder(environment), "/tmp");
    EXPECT_FALSE(environment.has("TMPDIR"));
    EXPECT_TRUE(environment.has("A"));
    EXPECT_EQ(::getenv("TMPDIR"), nullptr);
  }
}

TEST(TemporaryFolder, OneThatIsThereStaysWhateverIsWrongWithIt) {
  for (const std::string& folder : std::vector<std::string>{"/", testing::TempDir(), "/dev/null"}) {
    base::Environment environment{{{"TMPDIR", folder}}};
    EXPECT_EQ(leave_missing_temporary_folder(environment), "") << folder;
    EXPECT_EQ(temporary_folder(environment), folder);
  }
  base::Environment none{{}};
  EXPECT_EQ(leave_missing_temporary_folder(none), "");
  EXPECT_EQ(temporary_folder(none), "/tmp");
}

}  // namespace
}  // namespace ddp::launcher
