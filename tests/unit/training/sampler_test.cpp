// Samplers: equal to PyTorch's, and nothing repeated or lost while the number of ranks changes.
#include <ddp/distributed_sampler.hpp>
#include <ddp/elastic_sampler.hpp>
#include <ddp/rank_seed.hpp>

#include "base/byte_stream.hpp"
#include "training/samplers.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using test::error_of;
using Indices = std::vector<std::int64_t>;

Indices shares_of_all(std::int64_t size, int ranks, const SamplerOptions& options) {
  Indices all;
  for (int rank = 0; rank < ranks; ++rank) {
    const Indices share = DistributedSampler(size, ranks, rank, options).indices();
    all.insert(all.end(), share.begin(), share.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

Indices first_numbers(std::int64_t size) {
  Indices numbers(static_cast<std::size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

struct TorchSample {
  std::int64_t size;
  int ranks;
  int rank;
  std::int64_t seed;
  std::int64_t epoch;
  bool shuffle;
  Remainder remainder;
  Indices indices;
};

// From torch.utils.data.DistributedSampler of PyTorch 2.13.0+cpu.
TEST(DistributedSamplerOfTorch, HasTheSameIndices) {
  const std::vector<TorchSample> samples{
      {10, 3, 0, 0, 0, true, Remainder::pad, {4, 5, 0, 2}},
      {10, 3, 2, 0, 0, true, Remainder::pad, {7, 9, 6, 1}},
      {10, 3, 2, 0, 1, true, Remainder::pad, {1, 8, 7, 6}},
      {10, 3, 1, 0, 0, true, Remainder::drop, {1, 3, 8}},
      {10, 3, 1, 0, 0, false, Remainder::pad, {1, 4, 7, 0}},
      {10, 3, 2, 0, 0, false, Remainder::pad, {2, 5, 8, 1}},
      {2, 5, 4, 7, 3, true, Remainder::pad, {1}},
      {2, 5, 4, 7, 3, true, Remainder::drop, {}},
      {12, 4, 1, -5, 2, true, Remainder::drop, {10, 9, 2}},
      {0, 2, 1, 0, 0, true, Remainder::pad, {}},
  };
  for (const TorchSample& sample : samples) {
    DistributedSampler sampler(sample.size, sample.ranks, sample.rank,
                               {.shuffle = sample.shuffle, .seed = sample.seed, .remainder = sample.remainder});
    sampler.set_epoch(sample.epoch);
    EXPECT_EQ(sampler.indices(), sample.indices) << sample.size << " samples, rank " << sample.rank;
    EXPECT_EQ(sampler.size(), static_cast<std::int64_t>(sample.indices.size()));
  }
}

TEST(DistributedSamplerOfTorch, HasTheSameIndicesOfManySamples) {
  const auto hash = [](const DistributedSampler& sampler) {
    base::Fnv1a all;
    for (const std::int64_t index : sampler.indices()) all.add(static_cast<std::uint64_t>(index));
    return all.value();
  };
  DistributedSampler padded(100'003, 8, 7, {.shuffle = true, .seed = 42});
  padded.set_epoch(11);
  EXPECT_EQ(hash(padded), 0xd652'aff0'27cd'18e7U);
  DistributedSampler cut((1 << 20) + 1, 3, 2,
                         {.shuffle = true, .seed = (std::int64_t{1} << 40) + 9, .remainder = Remainder::drop});
  cut.set_epoch(1);
  EXPECT_EQ(hash(cut), 0x6916'a2a0'cda8'aa40U);
}

// torch takes it from 214,748,364 numbers on, which a test cannot: by MT19937 and the rule in Python.
TEST(RandomPermutation, OfManyNumbersDraws64BitsForEach) {
  EXPECT_THAT(training::random_permutation(12, 5, 12), ElementsAre(7, 10, 4, 11, 6, 0, 5, 2, 1, 3, 9, 8));
  EXPECT_NE(training::random_permutation(12, 5, 12), training::random_permutation(12, 5, 13));
  EXPECT_EQ(training::kManyNumbers, 214'748'364);
}

TEST(DistributedSampler, OfUnevenSharesGivesEachSampleOnce) {
  for (const bool shuffle : {true, false}) {
    for (const std::int64_t size : {0, 1, 3, 12, 101}) {
      for (const int ranks : {1, 3, 4, 7}) {
        const SamplerOptions options{.shuffle = shuffle, .seed = 3, .remainder = Remainder::uneven};
        EXPECT_EQ(shares_of_all(size, ranks, options), first_numbers(size)) << size << " among " << ranks;
      }
    }
  }
}

TEST(DistributedSampler, RefusesWhatIsNoRank) {
  for (const auto& [size, ranks, rank] : {std::tuple{10, 2, 2}, {10, 2, -1}, {10, 0, 0}, {-1, 2, 0}}) {
    const auto error = error_of([&, s = size, w = ranks, r = rank] { DistributedSampler(s, w, r); });
    ASSERT_TRUE(error) << size << " " << ranks << " " << rank;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  }
}

/// An epoch among numbers of ranks that change at random, with restarts; what all ranks have consumed.
Indices consume(std::mt19937& random, std::int64_t size, Remainder remainder, bool restarts) {
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  const SamplerOptions options{.shuffle = pick(0, 1) == 1, .seed = pick(0, 9), .remainder = remainder};
  const int epoch = pick(0, 3);
  Indices consumed;
  std::vector<ElasticSampler> ranks;
  const auto deal = [&](const SamplerState* from) {
    const int count = pick(1, 9);
    std::vector<ElasticSampler> dealt;
    for (int rank = 0; rank < count; ++rank) {
      if (from != nullptr && !restarts) {
        dealt.push_back(ranks[0]);
        dealt.back().resize(count, rank);
      } else {
        dealt.emplace_back(size, count, rank, options);
        if (from != nullptr) dealt.back().load(parse_sampler_state(to_string(*from)));
      }
      dealt.back().set_epoch(epoch);  // as a program does that has been restarted: progress stays
    }
    ranks = std::move(dealt);
  };
  deal(nullptr);
  while (ranks[0].size() > 0) {
    const std::int64_t batch = pick(1, 6);
    for (ElasticSampler& rank : ranks) {
      const Indices left = rank.indices();
      EXPECT_EQ(static_cast<std::int64_t>(left.size()), rank.size());
      const auto taken = std::min(batch, rank.size());
      consumed.insert(consumed.end(), left.begin(), left.begin() + taken);
      rank.record(taken);
    }
    if (pick(0, 2) == 0) {
      const SamplerState state = ranks[0].state();
      deal(&state);
    }
  }
  EXPECT_LE(ranks[0].state().consumed, size);
  std::sort(consumed.begin(), consumed.end());
  return consumed;
}

TEST(ElasticSampler, NeitherRepeatsNorLosesASampleWhateverTheSizes) {
  std::mt19937 random(20261123);  // NOLINT: the same in each run
  for (int round = 0; round < 600; ++round) {
    const std::int64_t size = std::uniform_int_distribution(0, 90)(random);
    ASSERT_EQ(consume(random, size, Remainder::uneven, round % 2 == 0), first_numbers(size)) << "round " << round;
  }
}

TEST(ElasticSampler, PadsOrDropsOnceAtTheEndAndFewerThanThereAreRanks) {
  std::mt19937 random(7);  // NOLINT
  for (int round = 0; round < 300; ++round) {
    const std::int64_t size = std::uniform_int_distribution(1, 90)(random);
    const Indices padded = consume(random, size, Remainder::pad, round % 2 == 0);
    EXPECT_EQ(std::set(padded.begin(), padded.end()).size(), static_cast<std::size_t>(size));
    EXPECT_LT(padded.size(), static_cast<std::size_t>(size) + 9);
    const Indices cut = consume(random, size, Remainder::drop, round % 2 == 0);
    EXPECT_EQ(std::set(cut.begin(), cut.end()).size(), cut.size()) << "none twice";
    EXPECT_GT(static_cast<std::int64_t>(cut.size()) + 9, size);
  }
}

TEST(ElasticSampler, DealsAnUninterruptedEpochAsTheOtherSampler) {
  for (const Remainder remainder : {Remainder::pad, Remainder::drop, Remainder::uneven}) {
    const SamplerOptions options{.shuffle = true, .seed = 8, .remainder = remainder};
    DistributedSampler plain(23, 4, 3, options);
    ElasticSampler elastic(23, 4, 3, options);
    plain.set_epoch(2);
    elastic.record(3);
    elastic.set_epoch(2);  // another epoch starts from its beginning
    EXPECT_EQ(elastic.indices(), plain.indices());
  }
}

TEST(ElasticSampler, RefusesAStateOfAnotherDataSetAndImpossibleRecords) {
  ElasticSampler sampler(10, 2, 0, {.shuffle = true, .seed = 1});
  for (const SamplerState& other : {SamplerState{.epoch = 0, .consumed = 0, .dataset_size = 11, .seed = 1},
                                    SamplerState{.epoch = 0, .consumed = 0, .dataset_size = 10, .seed = 2},
                                    SamplerState{.epoch = 0, .consumed = 12, .dataset_size = 10, .seed = 1}}) {
    const Error error = test::thrown_by([&] { sampler.load(other); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr("of=10 seed=1"));
  }
  EXPECT_TRUE(error_of([&] { sampler.record(6); }));
  EXPECT_TRUE(error_of([&] { sampler.record(-1); }));
  EXPECT_EQ(sampler.state().consumed, 0);
}

TEST(SamplerState, ReadsWhatItWritesAndNothingElse) {
  const SamplerState state{.epoch = -3, .consumed = 7, .dataset_size = 10, .seed = -9, .shuffle = false};
  const std::string text = to_string(state);
  EXPECT_EQ(text, "ddp-sampler 1 epoch=-3 consumed=7 of=10 seed=-9 shuffle=0");
  EXPECT_EQ(parse_sampler_state(text), state);
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_TRUE(error_of([&] { parse_sampler_state(text.substr(0, size)); })) << text.substr(0, size);
  }
  for (const char* wrong : {"ddp-sampler 2 epoch=0 consumed=0 of=1 seed=0 shuffle=0",
                            "ddp-sampler 1 epoch=0 consumed=2 of=1 seed=0 shuffle=0",
                            "ddp-sampler 1 epoch=0 consumed=-1 of=1 seed=0 shuffle=0",
                            "ddp-sampler 1 epoch=0 consumed=0 of=1 seed=0 shuffle=2",
                            "ddp-sampler 1 epoch=99999999999999999999 consumed=0 of=1 seed=0 shuffle=0",
                            "ddp-sampler 1 epoch=0 consumed=0 of=1 seed=0 shuffle=0\n"}) {
    EXPECT_TRUE(error_of([&] { parse_sampler_state(wrong); })) << wrong;
  }
}

TEST(RankSeed, IsSplitMix64sAndUnlikeItsNeighbours) {
  EXPECT_EQ(rank_seed(0, 0), 0xe220'a839'7b1d'cdafU);  // the generator's published first output
  EXPECT_EQ(rank_seed(1'234'567, 1), 3203168211198807973U);
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (int rank = 0; rank < 100; ++rank) seeds.insert(rank_seed(seed, rank));
  }
  EXPECT_EQ(seeds.size(), 10'000U);
}

}  // namespace
}  // namespace ddp
