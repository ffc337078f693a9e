#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/early_stop.hpp>
#include <ddp/metric_set.hpp>
#include <ddp/rank_log.hpp>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/log.hpp"

namespace ddp {
namespace {

std::uint64_t fingerprint_of(const std::vector<Metric>& metrics) {
  base::Fnv1a hash;
  for (const Metric& metric : metrics) {
    hash.add(static_cast<std::uint64_t>(metric.name.size())).add(std::string_view{metric.name});
    hash.add(static_cast<std::uint64_t>(metric.kind));
  }
  return hash.value();
}

[[noreturn]] void throw_other_metrics(std::vector<int> ranks) {
  throw Error{{.code = ErrorCode::mismatch,
               .attempted = "reducing metrics",
               .cause = "names or kinds are not those of rank 0",
               .ranks = std::move(ranks),
               .hint = "make the same MetricSet, in the same order, on every rank"}};
}

}  // namespace

MetricSet::MetricSet(std::vector<Metric> metrics)
    : metrics_(std::move(metrics)), collected_(metrics_.size()), fingerprint_(fingerprint_of(metrics_)) {
  for (auto metric = metrics_.begin(); metric != metrics_.end(); ++metric) {
    if (std::any_of(metrics_.begin(), metric, [&](const Metric& other) { return other.name == metric->name; })) {
      base::throw_invalid_argument("making a MetricSet", fmt::format("'{}' is there twice", metric->name), {});
    }
  }
}

void MetricSet::combine(MetricKind kind, Collected& into, const Collected& more) noexcept {
  const bool is_extreme = kind == MetricKind::min || kind == MetricKind::max;
  if (!is_extreme) {
    into.value += more.value;
  } else if (more.weight > 0) {
    const bool is_better = kind == MetricKind::min ? more.value < into.value : more.value > into.value;
    if (into.weight == 0 || is_better || std::isnan(more.value)) into.value = more.value;
  }
  into.weight += more.weight;
}

void MetricSet::add(std::string_view name, double value, double weight) {
  const auto metric =
      std::find_if(metrics_.begin(), metrics_.end(), [&](const Metric& each) { return each.name == name; });
  if (metric == metrics_.end()) {
    base::throw_invalid_argument("adding to a metric", fmt::format("'{}' is not in the set", name),
                                 "name all metrics when the MetricSet is made");
  }
  if (!std::isfinite(weight) || weight < 0) {
    base::throw_invalid_argument(fmt::format("adding to the metric '{}'", name), fmt::format("weight {}", weight), {});
  }
  const bool is_mean = metric->kind == MetricKind::mean;
  if (is_mean && weight == 0) return;  // the loss of a batch without samples is NaN
  combine(metric->kind, collected_[static_cast<std::size_t>(metric - metrics_.begin())],
          {.value = is_mean ? value * weight : value, .weight = is_mean ? weight : 1.0});
}

std::vector<std::optional<double>> MetricSet::reduce(ProcessGroup& group) {
  std::vector<double> own{std::bit_cast<double>(fingerprint_)};
  for (const Collected& each : collected_) own.insert(own.end(), {each.value, each.weight});
  std::vector<double> all(own.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(own, all).wait();
  collected_.assign(metrics_.size(), {});

  std::vector<int> others;
  for (std::size_t at = 0; at < all.size(); at += own.size()) {
    if (std::bit_cast<std::uint64_t>(all[at]) != std::bit_cast<std::uint64_t>(all[0])) {
      others.push_back(group.global_ranks()[at / own.size()]);
    }
  }
  if (!others.empty()) throw_other_metrics(std::move(others));

  std::vector<std::optional<double>> results;
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    Collected total;
    for (std::size_t at = 1 + 2 * i; at < all.size(); at += own.size()) {
      combine(metrics_[i].kind, total, {.value = all[at], .weight = all[at + 1]});
    }
    if (total.weight == 0) {
      results.emplace_back();
    } else {
      results.emplace_back(metrics_[i].kind == MetricKind::mean ? total.value / total.weight : total.value);
    }
  }
  return results;
}

bool EarlyStop::update(ProcessGroup& group, double value) {
  const double gain = best_ ? (options_.larger_is_better ? value - *best_ : *best_ - value) : 0;
  if (!std::isnan(value) && (!best_ || gain > options_.least_gain)) {
    best_ = value;
    stale_ = 0;
  } else if (++stale_ >= options_.patience) {
    request();
  }
  return agree(group);
}

bool EarlyStop::agree(ProcessGroup& group) {
  std::vector<std::int32_t> wanted{requested_ ? 1 : 0};
  group.all_reduce(wanted, ReduceOp::max).wait();
  return wanted[0] != 0;
}

RankLog::RankLog(const ProcessGroup& group, RankLogOptions options)
    : options_(std::move(options)), writes_(options_.rank < 0 || options_.rank == group.rank()) {}

bool RankLog::due(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return writes_ && is_due(now);
}

bool RankLog::write(std::string_view line, Clock::time_point now) {
  if (!writes_) return false;
  const std::lock_guard lock(mutex_);
  if (!is_due(now)) {
    ++left_out_;
    return false;
  }
  put(line, now);
  return true;
}

bool RankLog::write_always(std::string_view line, Clock::time_point now) {
  if (!writes_) return false;
  const std::lock_guard lock(mutex_);
  put(line, now);
  return true;
}

void RankLog::put(std::string_view line, Clock::time_point now) {
  std::string text{line};
  if (left_out_ > 0) text += fmt::format(" ({} lines left out before)", left_out_);
  left_out_ = 0;
  next_ = now + options_.interval;
  if (options_.sink) {
    options_.sink(text);
  } else {
    base::write_stderr_line(text);
  }
}

}  // namespace ddp
