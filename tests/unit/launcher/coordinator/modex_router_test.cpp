// Fences that span nodes, and questions between them.
#include "coordinator/modex_router.hpp"

#include <pmix_common.h>

namespace ddp::launcher {
namespace {

Bytes bytes(const std::string& text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

std::string text(const Bytes& data) { return {reinterpret_cast<const char*>(data.data()), data.size()}; }

/// The answer that a parcel has.
control::Fence fence_in(const ModexRouter::Parcel& parcel) {
  return std::get<control::Fence>(control::decode(control::encode(parcel.second)));
}

control::Fence contribution(std::vector<int> ranks, const std::string& data) {
  return {.epoch = 3, .ranks = std::move(ranks), .data = bytes(data), .status = 0};
}

/// Node 0 has ranks 0 and 1, node 1 has rank 2, node 2 has ranks 3 to 5.
ModexRouter router() { return {3, {2, 1, 3}}; }

TEST(ModexRouterTest, GivesEveryNodeAllContributionsInNodeOrder) {
  ModexRouter modex = router();
  EXPECT_TRUE(modex.fence(2, contribution({}, "c")).empty());
  EXPECT_TRUE(modex.fence(0, contribution({}, "a")).empty());
  const auto outgoing = modex.fence(1, contribution({}, "b"));
  ASSERT_EQ(outgoing.size(), 3U);
  for (int node = 0; node < 3; ++node) {
    EXPECT_EQ(outgoing[static_cast<std::size_t>(node)].first, node);
    const control::Fence answer = fence_in(outgoing[static_cast<std::size_t>(node)]);
    EXPECT_EQ(text(answer.data), "abc");
    EXPECT_EQ(answer.status, PMIX_SUCCESS);
    EXPECT_EQ(answer.epoch, 3);
  }
}

TEST(ModexRouterTest, AllNodesGetTheSameBytesInMemory) {
  ModexRouter modex = router();
  EXPECT_TRUE(modex.fence(0, contribution({}, "a")).empty());
  EXPECT_TRUE(modex.fence(1, contribution({}, "b")).empty());
  const auto outgoing = modex.fence(2, contribution({}, "c"));
  ASSERT_EQ(outgoing.size(), 3U);
  const auto bytes_of = [](const ModexRouter::Parcel& parcel) {
    return std::get<control::Encoded>(parcel.second).bytes.get();
  };
  EXPECT_EQ(bytes_of(outgoing[0]), bytes_of(outgoing[1]));
  EXPECT_EQ(bytes_of(outgoing[0]), bytes_of(outgoing[2]));
}

TEST(ModexRouterTest, AsksOnlyTheNodesThatTakePart) {
  ModexRouter modex = router();
  EXPECT_TRUE(modex.fence(0, contribution({1, 2}, "a")).empty());
  const auto outgoing = modex.fence(1, contribution({1, 2}, "b"));
  ASSERT_EQ(outgoing.size(), 2U);
  EXPECT_EQ(outgoing[0].first, 0);
  EXPECT_EQ(outgoing[1].first, 1);
}

TEST(ModexRouterTest, KeepsFencesOfDifferentRanksApart) {
  ModexRouter modex = router();
  EXPECT_TRUE(modex.fence(0, contribution({}, "all")).empty());
  EXPECT_TRUE(modex.fence(0, contribution({0, 2}, "two")).empty());
  const auto outgoing = modex.fence(1, contribution({0, 2}, "!"));
  ASSERT_EQ(outgoing.size(), 2U);
  EXPECT_EQ(text(fence_in(outgoing[0]).data), "two!");
}

TEST(ModexRouterTest, ANodeMayEnterTheNextFenceEarly) {
  ModexRouter modex{3, {1, 1}};
  EXPECT_TRUE(modex.fence(0, contribution({}, "first")).empty());
  EXPECT_TRUE(modex.fence(0, contribution({}, "second")).empty());
  auto outgoing = modex.fence(1, contribution({}, "1"));
  ASSERT_EQ(outgoing.size(), 2U);
  EXPECT_EQ(text(fence_in(outgoing[0]).data), "first1");
  outgoing = modex.fence(1, contribution({}, "2"));
  ASSERT_EQ(outgoing.size(), 2U);
  EXPECT_EQ(text(fence_in(outgoing[0]).data), "second2");
}

TEST(ModexRouterTest, RefusesRanksThatAreNotThere) {
  ModexRouter modex = router();
  for (const std::vector<int>& ranks : {std::vector<int>{0, 6}, {-1}, {3}}) {  // the last: not of the asking node
    const auto outgoing = modex.fence(0, contribution(ranks, "a"));
    ASSERT_EQ(outgoing.size(), 1U);
    EXPECT_EQ(outgoing[0].first, 0);
    EXPECT_EQ(std::get<control::Fence>(outgoing[0].second).status, PMIX_ERR_BAD_PARAM);
  }
}

TEST(ModexRouterTest, TakesQuestionsToTheOwnerAndAnswersBack) {
  ModexRouter modex = router();
  auto outgoing = modex.request(0, {.epoch = 3, .id = 9, .from_node = -1, .rank = 4});
  ASSERT_EQ(outgoing.size(), 1U);
  EXPECT_EQ(outgoing[0].first, 2);
  EXPECT_EQ(std::get<control::ModexRequest>(outgoing[0].second).from_node, 0);

  outgoing = modex.reply({.epoch = 3, .id = 9, .to_node = 0, .status = 0, .data = bytes("x")});
  ASSERT_EQ(outgoing.size(), 1U);
  EXPECT_EQ(outgoing[0].first, 0);

  outgoing = modex.request(1, {.epoch = 3, .id = 1, .from_node = -1, .rank = 6});
  ASSERT_EQ(outgoing.size(), 1U);
  EXPECT_EQ(outgoing[0].first, 1);
  EXPECT_EQ(std::get<control::ModexReply>(outgoing[0].second).status, PMIX_ERR_NOT_FOUND);
  EXPECT_TRUE(modex.reply({.epoch = 3, .id = 1, .to_node = 3, .status = 0}).empty());
}

}  // namespace
}  // namespace ddp::launcher
