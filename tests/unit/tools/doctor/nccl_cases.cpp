// Cases of the rules on NCCL's version, log, timeouts, and switches that were left on.
#include "unit/tools/doctor/rule_cases.hpp"

namespace ddp::tools::doctor::test {
namespace {

void log_to(JobFacts& job, const char* file, const char* level = "INFO") {
  set_all(job, "NCCL_DEBUG", level);
  set_all(job, "NCCL_DEBUG_FILE", file);
}

/// As many nodes like the second one, each with one rank and RDMA; nobody has probed anybody.
void give_nodes(JobFacts& job, std::size_t count) {
  for (NodeRecord& node : job.nodes) node.probes.results.clear();
  while (job.nodes.size() < count) {
    const auto number = static_cast<int>(job.nodes.size());
    NodeRecord node = job.nodes[1];
    node.host = "n" + std::to_string(number);
    node.facts.boot_id = "boot" + std::to_string(number);
    const std::string address = "10.1.0." + std::to_string(number + 1);
    node.facts.interfaces[1] = interface_of("eth0", address);
    node.facts.candidate_facts = {candidate(address)};
    RankFacts rank = job.ranks[3];
    rank.rank = static_cast<int>(job.ranks.size());
    rank.node = number;
    rank.host = node.host;
    node.ranks = {rank.rank};
    job.nodes.push_back(node);
    job.ranks.push_back(rank);
  }
  for (NodeRecord& node : job.nodes) give_rdma(node);
}

}  // namespace

std::vector<Case> nccl_faults() {
  return {
      {"env-left-over", "NVLS switched off", [](auto& job) { set_all(job, "NCCL_NVLS_ENABLE", "0"); }},
      {"env-left-over", "threads forced", [](auto& job) { set_all(job, "NCCL_NTHREADS", "256"); }},
      {"env-left-over", "a size of buffers forced", [](auto& job) { set_all(job, "NCCL_BUFFSIZE", "8388608"); }},
      {"nccl-log-file", "one file of all", [](auto& job) { log_to(job, "nccl.log"); }},
      {"nccl-log-file", "one of each host", [](auto& job) { log_to(job, "/home/u/nccl.%h.log", "warn"); }},
      {"nccl-log-file", "%% makes a plain one", [](auto& job) { log_to(job, "/tmp/nccl.%%p.log"); }},
      {"nccl-ib-timeout", "14 on 65 nodes",
       [](auto& job) {
         give_nodes(job, 65);
         set_all(job, "NCCL_IB_TIMEOUT", "14");
       }},
      {"nccl-ib-timeout", "what 2.22 has",
       [](auto& job) {
         give_nodes(job, 65);
         give_nccl(job, "2.22.3+cuda12.4");
       }},
      {"nccl-copies", "another one behind the first",
       [](auto& job) { job.ranks[2].nccl_copies = {"2.27.5 (/opt/lib/libnccl.so.2)"}; }},
      {"nccl-sockets", "16 * 8",
       [](auto& job) {
         set_all(job, "NCCL_SOCKET_NTHREADS", "16");
         set_all(job, "NCCL_NSOCKS_PERTHREAD", "8");
       }},
      {"nccl-ras-port", "another user's", [](auto& job) { job.nodes[1].facts.foreign_ras_port = 28028; }},
      {"stack-unlimited", "with NCCL 2.27",
       [](auto& job) {
         job.ranks[1].stack_unlimited = true;
         give_nccl(job, "2.27.5+cuda12.9");
       }},
      {"ipc-removed", "the user is logged in", [](auto& job) { job.nodes[1].facts.removes_ipc = true; }},
      {"nccl-bad-version", "a restart in the process", [](auto& job) { give_nccl(job, "2.28.7+cuda13.0"); }},
      {"nccl-bad-version", "wrong sums with RDMA",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         give_nccl(job, "2.18.1+cuda12.1");
       }},
  };
}

std::vector<Case> nccl_near_misses() {
  return {
      {"env-left-over", "NVLS as NCCL decides", [](auto& job) { set_all(job, "NCCL_NVLS_ENABLE", "2"); }},
      {"env-left-over", "empty is unset", [](auto& job) { set_all(job, "NCCL_NVLS_ENABLE", ""); }},
      {"nccl-log-file", "a file of each process", [](auto& job) { log_to(job, "nccl.%h.%p"); }},
      {"nccl-log-file", "no file without a level", [](auto& job) { log_to(job, "nccl.log", "VERSION"); }},
      {"nccl-log-file", "a stream", [](auto& job) { log_to(job, "/dev/stderr"); }},
      {"nccl-log-file", "each its own",
       [](auto& job) {
         log_to(job, "");
         for (RankFacts& rank : job.ranks) rank.environment["NCCL_DEBUG_FILE"] = "nccl." + std::to_string(rank.rank);
       }},
      {"nccl-log-file", "one rank of each host, in its own /tmp",
       [](auto& job) {
         log_to(job, "/tmp/nccl.log");
         for (std::size_t rank : {1U, 3U}) job.ranks[rank].environment.erase("NCCL_DEBUG");
       }},
      {"nccl-ib-timeout", "64 nodes",
       [](auto& job) {
         give_nodes(job, 64);
         set_all(job, "NCCL_IB_TIMEOUT", "14");
       }},
      {"nccl-ib-timeout", "the proposed value in place of 2.22's",
       [](auto& job) {
         give_nodes(job, 65);
         give_nccl(job, "2.22.3+cuda12.4");
         set_all(job, "NCCL_IB_TIMEOUT", "22");
       }},
      {"nccl-ib-timeout", "what 2.23 has",
       [](auto& job) {
         give_nodes(job, 65);
         give_nccl(job, "2.23.4+cuda12.6");
       }},
      {"nccl-copies", "one for all", [](auto& job) { give_nccl(job, "2.27.5+cuda12.9"); }},
      {"nccl-sockets", "16 * 4",
       [](auto& job) {
         set_all(job, "NCCL_SOCKET_NTHREADS", "16");
         set_all(job, "NCCL_NSOCKS_PERTHREAD", "4");
       }},
      {"nccl-ras-port", "RAS is off",
       [](auto& job) {
         job.nodes[1].facts.foreign_ras_port = 28028;
         set_all(job, "NCCL_RAS_ENABLE", "0");
       }},
      {"stack-unlimited", "with NCCL 2.28.9, or unknown",
       [](auto& job) {
         for (RankFacts& rank : job.ranks) rank.stack_unlimited = true;
         give_nccl(job, "2.28.9+cuda13.0");
         job.nccl.front().ranks = {0, 1};
       }},
      {"ipc-removed", "not logged in", [](auto& job) { job.nodes[1].facts.removes_ipc = false; }},
      {"nccl-bad-version", "corrected",
       [](auto& job) {
         give_nccl(job, "2.28.9+cuda13.0");
         job.nccl.front().ranks = {0, 1};
         job.nccl.push_back(job.nccl.front());
         job.nccl.back().version = "2.29.3+cuda13.1";
         job.nccl.back().ranks = {2, 3};
       }},
      {"nccl-bad-version", "2.18.1 without RDMA", [](auto& job) { give_nccl(job, "2.18.1+cuda12.1"); }},
      {"nccl-bad-version", "2.18.1 with what avoids it",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         give_nccl(job, "2.18.1+cuda12.1");
         set_all(job, "NCCL_IB_PCI_RELAXED_ORDERING", "0");
       }},
  };
}

}  // namespace ddp::tools::doctor::test
