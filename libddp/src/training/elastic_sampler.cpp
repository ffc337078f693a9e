#include <ddp/elastic_sampler.hpp>

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "training/equal_arguments.hpp"
#include "training/shares.hpp"

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
                                 fmt::format("'{:.100}' is none of this version", text),
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
                 .hint = "an epoch can only go on with the same data set, seed and shuffle"}};
  }
  state_ = state;
}

}  // namespace ddp
