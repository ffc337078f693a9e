// Where nodes meet, as the command line says it.
#include "options/rendezvous_options.hpp"

#include "command_line_support.hpp"

namespace ddp::launcher {
namespace {

TEST(RendezvousOptions, Backends) {
  EXPECT_EQ(parse({"--rdzv-backend", "static", "p"}).rendezvous.backend, RendezvousBackend::fixed);
  EXPECT_EQ(parse({"--rdzv-backend", "c10d", "p"}).rendezvous.backend, RendezvousBackend::c10d);
  for (const char* gone : {"etcd", "etcd-v2"})
    EXPECT_THAT(complaint({"--rdzv-backend", gone, "p"}), HasSubstr("use c10d, with --rdzv-endpoint"));
  EXPECT_THAT(complaint({"--rdzv-backend", "c10", "p"}), HasSubstr("static, c10d; did you mean 'c10d'?"));
}

TEST(RendezvousOptions, Endpoints) {
  struct Case {
    const char* text;
    const char* host;
    int port;
  };
  for (const auto& [text, host, port] :
       {Case{"node1", "node1", -1}, Case{"node-1.x_y.org:29400", "node-1.x_y.org", 29400},
        Case{"localhost:0", "localhost", 0}, Case{" 10.0.0.1:65535 ", "10.0.0.1", 65535},
        Case{"[::1]:29500", "::1", 29500}, Case{"[fe80::1%eth0]", "fe80::1%eth0", -1}}) {
    const auto endpoint = parse_endpoint("--rdzv-endpoint", text);
    EXPECT_EQ(endpoint.host, host) << text;
    EXPECT_EQ(endpoint.port ? int{*endpoint.port} : -1, port) << text;
  }
  for (const char* wrong : {":29400", "h:", "h:x", "h:65536", "h:-1", "h:000001", "::1", "::1:29400", "[::1", "[::1]x",
                            "[::1]:", "[]:1", "[h]:1", "http://h:1", "h i:1", "-h:1", "h,i", "[::1]]:2"})
    EXPECT_THAT(complaint({fmt::format("--rdzv-endpoint={}", wrong), "p"}), HasSubstr("reading --rdzv-endpoint"))
        << wrong;
  EXPECT_EQ(parse({"--rdzv-endpoint=", "p"}).rendezvous.endpoint_host, "");
  EXPECT_EQ(parse({"--rdzv-endpoint=h:1", "--rdzv-endpoint=i", "p"}).rendezvous.endpoint_port, std::nullopt);
}

TEST(RendezvousOptions, Conf) {
  const auto options = parse({"--rdzv-conf",
                              " join_timeout=5, last_call_timeout=0 ,read_timeout=1.5,timeout=1800,"
                              "is_host=True,store_type=tcp,keep_alive_interval=1,rank=2",
                              "p"});
  const auto& rendezvous = options.rendezvous;
  EXPECT_EQ(rendezvous.join_timeout, std::chrono::seconds(5));
  EXPECT_EQ(rendezvous.last_call_timeout, std::chrono::seconds(0));
  EXPECT_EQ(rendezvous.read_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(rendezvous.static_timeout, std::chrono::minutes(30));
  EXPECT_EQ(rendezvous.is_host, true);
  EXPECT_THAT(options.notices,
              ElementsAre(HasSubstr("keep_alive_interval in --rdzv-conf is ignored"), HasSubstr("--node-rank gives")));
  EXPECT_EQ(parse({"--rdzv-conf=is_host=n", "p"}).rendezvous.is_host, false);
  EXPECT_EQ(parse({"--rdzv-conf= ", "p"}).rendezvous.is_host, std::nullopt);
  for (const char* wrong : {"join_timeout", "join_timeout=", "=5", ",", "join_timeout=0", "join_timeout=x",
                            "is_host=maybe", "store_type=file", "read_timeout=1,"})
    EXPECT_THAT(complaint({fmt::format("--rdzv-conf={}", wrong), "p"}), HasSubstr("--rdzv-conf")) << wrong;
  EXPECT_THAT(complaint({"--rdzv-conf=join_timout=5", "p"}), HasSubstr("did you mean 'join_timeout'?"));
  EXPECT_THAT(complaint({"--rdzv-conf=zz=5", "p"}), HasSubstr("use one of join_timeout"));
}

TEST(RendezvousOptions, NodesAndAddresses) {
  const auto options = parse({"--nnodes=2", "--node-rank", "1", "--master-addr", "[fd00::1]", "--master-port=1234",
                              "--local-addr", "10.1.1.1", "--rdzv-id", "job 7", "p"});
  EXPECT_EQ(options.rendezvous.node_rank, 1);
  EXPECT_EQ(options.rendezvous.master_addr, "fd00::1");
  EXPECT_TRUE(options.rendezvous.master_addr_given);
  EXPECT_EQ(options.rendezvous.master_port, 1234);
  EXPECT_EQ(options.local_addr, "10.1.1.1");
  EXPECT_EQ(options.rendezvous.run_id, "job 7");
  EXPECT_EQ(parse({"--rdzv-id=", "p"}).rendezvous.run_id, "none");
  EXPECT_FALSE(parse({"p"}).rendezvous.master_addr_given);
  for (const Words& words :
       {Words{"--master-addr=h:1", "p"}, Words{"--master-addr=", "p"}, Words{"--master-port=-1", "p"},
        Words{"--master-port=65536", "p"}, Words{"--node-rank=-1", "p"}, Words{"--rdzv-id=a/b", "p"},
        Words{"--rdzv-id=a\nb", "p"}, Words{"--local-addr=a b", "p"}})
    EXPECT_THAT(complaint(words), HasSubstr("reading --")) << words[0];
}

TEST(RendezvousOptions, WhatMakesNoSenseTogether) {
  EXPECT_THAT(complaint({"--nnodes=2", "--node-rank=2", "p"}), HasSubstr("node rank 2 does not exist"));
  EXPECT_EQ(complaint({"--node-rank=2", "p"}), "no complaint") << "Slurm may have more nodes";
  EXPECT_EQ(complaint({"--nnodes=1:4", "--node-rank=3", "p"}), "no complaint");
  const auto c10d = parse({"--nnodes=2", "--node-rank=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "p"});
  EXPECT_THAT(c10d.notices, ElementsAre(HasSubstr("--node-rank is ignored")));
  EXPECT_THAT(complaint({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:0", "p"}), HasSubstr("any free port"));
  EXPECT_THAT(complaint({"--nnodes=2", "--master-port=0", "p"}), HasSubstr("any free port"));
  EXPECT_THAT(parse({"--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "p"}).notices, IsEmpty());
}

}  // namespace
}  // namespace ddp::launcher
