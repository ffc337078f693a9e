// Every rank's report reaches rank 0, and each kind of machine travels once.
#include "topo/job_gather.hpp"

#include "kvs/memory_store.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

/// A store that counts the XML texts that are put.
class CountingStore : public KeyValueStore {
 public:
  CountingStore(std::shared_ptr<kvs::MemoryHub> hub, int rank, std::atomic<int>& count)
      : store_(std::move(hub), rank), count_(count) {}

  int rank() const override { return store_.rank(); }
  int world_size() const override { return store_.world_size(); }
  std::string_view transport() const override { return store_.transport(); }
  void put(std::string_view key, std::span<const std::byte> value) override {
    if (key.find("xml") != std::string_view::npos) ++count_;
    store_.put(key, value);
  }
  void fence(Deadline deadline) override { store_.fence(deadline); }
  Bytes get(int rank, std::string_view key, Deadline deadline) override { return store_.get(rank, key, deadline); }
  void close() noexcept override { store_.close(); }

 private:
  kvs::MemoryStore store_;
  std::atomic<int>& count_;
};

struct Outcome {
  std::optional<GatheredJob> job;  ///< of rank 0
  std::optional<Error> error;      ///< of rank 0
  int others = 0;                  ///< ranks that got a job though they are not rank 0
  int xml_texts = 0;
};

int local_rank_of(const std::vector<int>& ranks, int rank) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank) return static_cast<int>(i);
  }
  return -1;
}

/// Gathers a job of ranks on nodes, one thread for each. @p machines: of each node. @p spoil changes a rank's facts.
Outcome gather(const std::vector<std::vector<int>>& nodes, const std::vector<std::string>& machines,
               const std::function<void(int rank, OwnFacts&)>& spoil = {}) {
  int world_size = 0;
  for (const auto& ranks : nodes) world_size += static_cast<int>(ranks.size());
  const auto hub = std::make_shared<kvs::MemoryHub>(world_size);
  std::atomic<int> xml_texts{0};
  std::atomic<int> others{0};
  Outcome outcome;
  std::vector<std::thread> threads;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (const int rank : nodes[node]) {
      threads.emplace_back([&, node, rank] {
        CountingStore store{hub, rank, xml_texts};
        OwnFacts own;
        own.report.rank = rank;
        own.report.local_rank = local_rank_of(nodes[node], rank);
        own.report.host = "n" + std::to_string(node);
        if (own.report.local_rank == 0) {
          own.machine = machines[node];
          own.xml = "<" + machines[node] + "/>";
        }
        if (spoil) spoil(rank, own);
        std::optional<GatheredJob> job;
        const auto error = test::error_of([&] {
          job = gather_job(store, {.rank = rank, .node_ranks = nodes}, own, Deadline::after(std::chrono::seconds(60)));
        });
        if (rank == 0) {
          outcome.job = std::move(job);
          outcome.error = error;
        } else if (job) {
          ++others;
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  outcome.xml_texts = xml_texts;
  outcome.others = others;
  return outcome;
}

TEST(JobGather, UnevenNodesOfTwoKindsWithCyclicRanks) {
  const Outcome outcome = gather({{0, 3, 5}, {1, 4}, {2}}, {"big", "small", "big"});
  ASSERT_TRUE(outcome.job) << (outcome.error ? outcome.error->what() : "");
  EXPECT_EQ(outcome.others, 0);
  EXPECT_EQ(outcome.xml_texts, 2);
  const GatheredJob& job = *outcome.job;
  ASSERT_EQ(job.nodes.size(), 3U);
  EXPECT_EQ(job.nodes[0].ranks.size(), 3U);
  EXPECT_EQ(job.nodes[0].ranks[2].rank, 5);
  EXPECT_EQ(job.nodes[1].ranks[1].rank, 4);
  EXPECT_EQ(job.nodes[2].ranks[0].host, "n2");
  EXPECT_EQ(job.nodes[2].machine, "big");
  ASSERT_EQ(job.xml.size(), 2U);
  EXPECT_EQ(job.xml.at("big"), "<big/>");
  EXPECT_EQ(job.xml.at("small"), "<small/>");
}

TEST(JobGather, OneTopologyTravelsWhateverTheNumberOfNodes) {
  std::vector<std::vector<int>> nodes;
  for (int node = 0; node < 12; ++node) nodes.push_back({2 * node, 2 * node + 1});
  const Outcome outcome = gather(nodes, std::vector<std::string>(12, "same"));
  ASSERT_TRUE(outcome.job);
  EXPECT_EQ(outcome.xml_texts, 1);
  EXPECT_EQ(outcome.job->nodes.size(), 12U);
}

TEST(JobGather, AFailedRankIsReportedAndHoldsUpNobody) {
  const Outcome outcome = gather({{0, 1}, {2, 3}}, {"same", "same"}, [](int rank, OwnFacts& own) {
    if (rank == 2) {
      own.report.failure = "hwloc failed";
      own.machine.clear();
    }
  });
  ASSERT_TRUE(outcome.job);
  EXPECT_EQ(outcome.job->nodes[1].ranks[0].failure, "hwloc failed");
  EXPECT_EQ(outcome.job->nodes[1].machine, "");
  EXPECT_EQ(outcome.job->nodes[1].ranks[1].failure, "");
}

TEST(JobGather, AReportThatIsTooLargeBecomesAFailure) {
  const Outcome outcome = gather({{0, 1}}, {"same"}, [](int rank, OwnFacts& own) {
    if (rank == 1) own.report.environment["OMP_PLACES"] = std::string(kLargestReportBytes, 'x');
  });
  ASSERT_TRUE(outcome.job);
  EXPECT_THAT(outcome.job->nodes[0].ranks[1].failure, HasSubstr("more than"));
  EXPECT_EQ(outcome.job->nodes[0].ranks[1].host, "n0");
}

TEST(JobGather, AnXmlThatIsTooLargeBecomesAFailure) {
  const Outcome outcome = gather({{0}, {1}}, {"a", "b"}, [](int rank, OwnFacts& own) {
    if (rank == 1) own.xml.assign(kLargestXmlBytes + 1, 'x');
  });
  ASSERT_TRUE(outcome.job);
  EXPECT_THAT(outcome.job->nodes[1].ranks[0].failure, HasSubstr("XML"));
  EXPECT_EQ(outcome.xml_texts, 1);
}

TEST(JobGather, ARankThatSaysItIsAnotherIsRefused) {
  const Outcome outcome = gather({{0, 1}}, {"same"}, [](int rank, OwnFacts& own) {
    if (rank == 1) own.report.rank = 0;
  });
  EXPECT_FALSE(outcome.job);
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code(), ErrorCode::protocol);
  EXPECT_EQ(outcome.error->ranks(), std::vector<int>{1});
}

}  // namespace
}  // namespace ddp::tools
