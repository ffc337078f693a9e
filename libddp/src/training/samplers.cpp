#include "training/samplers.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/elastic_sampler.hpp>
#include <ddp/error.hpp>
#include <ddp/rank_seed.hpp>

#include "base/errors.hpp"

namespace ddp {
namespace {

constexpr std::string_view kSamplerStart = "ddp-sampler 1";

/// Takes " name=number" off the front of @p text.
bool take_number(std::string_view& text, std::string_view name, std::int64_t& number) {
  if (!text.starts_with(' ') || !text.substr(1).starts_with(name) || !text.substr(1 + name.size()).starts_with('=')) {
    return false;
  }
  text.remove_prefix(name.size() + 2);
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

std::string to_string(const SamplerState& state) {
  return fmt::format("{} epoch={} consumed={} of={} seed={} shuffle={}", kSamplerStart, state.epoch, state.consumed,
                     state.dataset_size, state.seed, state.shuffle ? 1 : 0);
}

SamplerState parse_sampler_state(std::string_view text) {
  SamplerState state;
  std::int64_t shuffle = 0;
  std::string_view rest = text;
  const bool starts = rest.starts_with(kSamplerStart);
  if (starts) rest.remove_prefix(kSamplerStart.size());
  const bool read = starts && take_number(rest, "epoch", state.epoch) &&
                    take_number(rest, "consumed", state.consumed) && take_number(rest, "of", state.dataset_size) &&
                    take_number(rest, "seed", state.seed) && take_number(rest, "shuffle", shuffle) && rest.empty();
  if (!read || (shuffle != 0 && shuffle != 1) || state.consumed < 0 || state.consumed > state.dataset_size) {
    base::throw_invalid_argument("reading the state of a sampler",
                                 fmt::format("'{:.100}' is not a state of this version", text),
                                 "it looks like 'ddp-sampler 1 epoch=3 consumed=1200 of=50000 seed=7 shuffle=1'");
  }
  state.shuffle = shuffle == 1;
  return state;
}

ElasticSampler::ElasticSampler(std::int64_t dataset_size, int ranks, int rank, SamplerOptions options)
    : state_{.epoch = 0, .consumed = 0, .dataset_size = dataset_size, .seed = options.seed, .shuffle = options.shuffle},
      ranks_(ranks),
      rank_(rank),
      remainder_(options.remainder) {
  training::check_share("making an ElasticSampler", dataset_size, ranks, rank);
}

ElasticSampler::ElasticSampler(std::int64_t dataset_size, const ProcessGroup& group, SamplerOptions options)
    : ElasticSampler(training::equal_arguments("making an ElasticSampler", group, dataset_size, options), group.size(),
                     group.rank(), options) {}

std::int64_t ElasticSampler::size() const noexcept {
  return training::share_size(state_.dataset_size - state_.consumed, ranks_, rank_, remainder_);
}

std::vector<std::int64_t> ElasticSampler::indices() const {
  return training::share_of(state_.dataset_size, state_.epoch, state_.consumed, ranks_, rank_,
                            {.shuffle = state_.shuffle, .seed = state_.seed, .remainder = remainder_});
}

void ElasticSampler::record(std::int64_t samples) {
  if (samples < 0 || samples > size()) {
    base::throw_invalid_argument("recording consumed samples", fmt::format("{} of {} that are left", samples, size()),
                                 {});
  }
  // the last of a padded or uneven epoch are fewer than samples * ranks
  state_.consumed = std::min(state_.dataset_size, state_.consumed + samples * ranks_);
}

void ElasticSampler::set_epoch(std::int64_t epoch) noexcept {
  if (epoch == state_.epoch) return;
  state_.epoch = epoch;
  state_.consumed = 0;
}

void ElasticSampler::resize(int ranks, int rank) {
  training::check_share("changing a sampler's number of ranks", state_.dataset_size, ranks, rank);
  ranks_ = ranks;
  rank_ = rank;
}

void ElasticSampler::load(const SamplerState& state) {
  if (state.dataset_size != state_.dataset_size || state.seed != state_.seed || state.shuffle != state_.shuffle ||
      state.consumed < 0 || state.consumed > state.dataset_size) {
    throw Error{{.code = ErrorCode::mismatch,
                 .attempted = "loading the state of a sampler",
                 .cause = fmt::format("the state is '{}', the sampler's '{}'", to_string(state), to_string(state_)),
                 .hint = "an epoch can only continue with the same data set, seed and shuffle"}};
  }
  state_ = state;
}

DistributedSampler::DistributedSampler(std::int64_t dataset_size, int ranks, int rank, SamplerOptions options)
    : dataset_size_(dataset_size), ranks_(ranks), rank_(rank), options_(options) {
  training::check_share("making a DistributedSampler", dataset_size, ranks, rank);
}

DistributedSampler::DistributedSampler(std::int64_t dataset_size, const ProcessGroup& group, SamplerOptions options)
    : DistributedSampler(training::equal_arguments("making a DistributedSampler", group, dataset_size, options),
                         group.size(), group.rank(), options) {}

std::int64_t DistributedSampler::size() const noexcept {
  return training::share_size(dataset_size_, ranks_, rank_, options_.remainder);
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  return training::share_of(dataset_size_, epoch_, 0, ranks_, rank_, options_);
}

}  // namespace ddp

namespace ddp::training {

void check_share(const std::string& attempted, std::int64_t dataset_size, int ranks, int rank) {
  if (dataset_size < 0) base::throw_invalid_argument(attempted, fmt::format("{} samples", dataset_size), {});
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    base::throw_invalid_argument(attempted, fmt::format("rank {} of {} ranks", rank, ranks),
                                 "ranks are numbered from 0 to the number of ranks less one");
  }
}

std::int64_t share_size(std::int64_t left, int ranks, int rank, Remainder remainder) {
  const std::int64_t all_have = left / ranks;
  const std::int64_t more = left % ranks;
  if (more == 0 || remainder == Remainder::drop) return all_have;
  return remainder == Remainder::pad || rank < more ? all_have + 1 : all_have;
}

std::vector<std::int64_t> share_of(std::int64_t dataset_size, std::int64_t epoch, std::int64_t first, int ranks,
                                   int rank, const SamplerOptions& options) {
  const std::int64_t size = share_size(dataset_size - first, ranks, rank, options.remainder);
  std::vector<std::int64_t> order;
  if (options.shuffle && size > 0) {
    // two's complement, as torch seeds its generator
    const auto seed = static_cast<std::uint64_t>(options.seed) + static_cast<std::uint64_t>(epoch);
    order = random_permutation(dataset_size, static_cast<std::int64_t>(seed));
  }
  std::vector<std::int64_t> share;
  share.reserve(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t place = (first + rank + i * ranks) % dataset_size;
    share.push_back(options.shuffle ? order[static_cast<std::size_t>(place)] : place);
  }
  return share;
}

std::vector<std::int64_t> random_permutation(std::int64_t size, std::int64_t seed, std::int64_t many) {
  const auto count = static_cast<std::uint64_t>(size);
  std::vector<std::int64_t> order(count);
  std::mt19937 random{static_cast<std::uint32_t>(seed)};
  if (size < many) {
    std::iota(order.begin(), order.end(), 0);
    for (std::uint64_t i = 0; i + 1 < count; ++i) std::swap(order[i], order[i + random() % (count - i)]);
    return order;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t high = static_cast<std::uint64_t>(random()) << 32U;
    const std::uint64_t place = (high | random()) % (i + 1);
    order[i] = order[place];
    order[place] = static_cast<std::int64_t>(i);
  }
  return order;
}

namespace {

struct Argument {
  const char* name;
  std::string (*text)(std::int64_t);
};

std::string number(std::int64_t value) { return std::to_string(value); }
std::string truth(std::int64_t value) { return value != 0 ? "true" : "false"; }
std::string remainder_word(std::int64_t value) {
  switch (static_cast<Remainder>(value)) {
    case Remainder::pad: return "pad";
    case Remainder::drop: return "drop";
    case Remainder::uneven: return "uneven";
  }
  return "unknown";
}

}  // namespace

std::int64_t equal_arguments(const char* attempted, const ProcessGroup& group, std::int64_t dataset_size,
                             const SamplerOptions& options) {
  static constexpr Argument kArguments[] = {{"numbers of samples", &number},
                                            {"seeds", &number},
                                            {"values of shuffle", &truth},
                                            {"remainders", &remainder_word}};
  struct Exchange {
    std::vector<std::int64_t> own, all;
  };
  const auto exchange = std::make_shared<Exchange>();
  exchange->own = {dataset_size, options.seed, options.shuffle ? 1 : 0, static_cast<std::int64_t>(options.remainder)};
  exchange->all.resize(exchange->own.size() * static_cast<std::size_t>(group.size()));
  ProcessGroup members = group;
  members.all_gather(exchange->own, exchange->all, {{}, exchange}).wait_watched();

  for (std::size_t i = 0; i < exchange->own.size(); ++i) {
    std::map<std::int64_t, std::vector<int>> ranks;  // by value
    std::vector<int> others;
    for (std::size_t at = i; at < exchange->all.size(); at += exchange->own.size()) {
      const int rank = group.global_ranks()[at / exchange->own.size()];
      ranks[exchange->all[at]].push_back(rank);
      if (exchange->all[at] != exchange->all[i]) others.push_back(rank);
    }
    if (ranks.size() == 1) continue;
    std::vector<std::string> values;
    for (const auto& [value, having] : ranks) {
      values.push_back(fmt::format("{} on {}", kArguments[i].text(value), format_ranks(having)));
    }
    throw Error{
        {.code = ErrorCode::mismatch,
         .attempted = attempted,
         .cause = fmt::format("ranks of the group give different {}: {}", kArguments[i].name, fmt::join(values, "; ")),
         .ranks = std::move(others),
         .hint = "give the same on all ranks: else samples come twice, or never"}};
  }
  return dataset_size;
}

}  // namespace ddp::training

namespace ddp {

std::uint64_t rank_seed(std::uint64_t seed, int rank) noexcept {
  std::uint64_t mixed = seed + (static_cast<std::uint64_t>(rank) + 1) * 0x9e37'79b9'7f4a'7c15U;
  mixed = (mixed ^ (mixed >> 30U)) * 0xbf58'476d'1ce4'e5b9U;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94d0'49bb'1331'11ebU;
  return mixed ^ (mixed >> 31U);
}

}  // namespace ddp
