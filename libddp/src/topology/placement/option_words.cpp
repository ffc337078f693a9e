#include "topology/placement/option_words.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/closest_word.hpp"

namespace ddp {
namespace {

template <class Value>
Value read_word(std::span<const std::string_view> words, std::string attempted, std::string_view word) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return static_cast<Value>(found - words.begin());
  throw base::unknown_word(std::move(attempted), word, std::vector<std::string>(words.begin(), words.end()));
}

constexpr const char* kReadingBind = "reading the environment variable DDP_BIND";
constexpr const char* kReadingGpus = "reading the environment variable DDP_GPUS";

}  // namespace

std::string_view to_string(BindPolicy policy) noexcept {
  return topology::kBindWords[static_cast<std::size_t>(policy)];
}

BindPolicy parse_bind_policy(std::string_view word) {
  return topology::read_bind_policy("reading a binding policy", word);
}

namespace topology {

std::string_view to_string(GpuVisibility visibility) noexcept {
  return kGpuWords[static_cast<std::size_t>(visibility)];
}

BindPolicy read_bind_policy(std::string attempted, std::string_view word) {
  return read_word<BindPolicy>(kBindWords, std::move(attempted), word);
}

GpuVisibility read_gpu_visibility(std::string attempted, std::string_view word) {
  return read_word<GpuVisibility>(kGpuWords, std::move(attempted), word);
}

std::optional<BindPolicy> bind_policy_of(const base::Environment& environment) {
  const std::string word = environment.text("DDP_BIND");
  return word.empty() ? std::nullopt : std::optional{read_bind_policy(kReadingBind, word)};
}

GpuVisibility gpu_visibility_of(const base::Environment& environment) {
  const std::string word = environment.text("DDP_GPUS");
  return word.empty() ? GpuVisibility::all : read_gpu_visibility(kReadingGpus, word);
}

}  // namespace topology
}  // namespace ddp
