#include "named/comparison.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp {

std::string_view to_string(NamedKind kind) noexcept {
  switch (kind) {
    case NamedKind::all_reduce: return "all_reduce";
    case NamedKind::all_gather: return "all_gather";
    case NamedKind::broadcast: return "broadcast";
    case NamedKind::all_to_all: return "all_to_all";
    case NamedKind::reduce_scatter: return "reduce_scatter";
    case NamedKind::barrier: return "barrier";
  }
  return "operation";
}

namespace named {
namespace {

constexpr std::size_t kMostShown = 120;  // bytes of a name
constexpr std::size_t kMostTensors = 4;  // of a group, in a text

std::string_view word_of(Kind kind) {
  if (kind == Kind::add_set) return "add_process_set";
  if (kind == Kind::remove_set) return "remove_process_set";
  return to_string(static_cast<NamedKind>(kind));
}

/// Whose first dimensions may differ from rank to rank.
bool has_free_rows(Kind kind) { return kind == Kind::all_gather || kind == Kind::all_to_all; }

/// Bytes of the first character of UTF-8 (RFC 3629, without surrogates); 0 where there is none, or it is a control
/// character.
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first < 0x20 || first == 0x7f ? 0 : 1;
  const std::size_t length = first >= 0xc2 && first < 0xe0   ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
  }
  const unsigned second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool beyond = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return overlong || beyond ? 0 : length;
}

std::string tensor_text(const TensorFacts& tensor) {
  return fmt::format("{}[{}]", to_string(tensor.dtype), fmt::join(tensor.shape, ", "));
}

/// The first tensor of a group that differs, with its number; else all that is compared.
std::pair<std::string, std::string> both_sides(Kind kind, const Facts& one, const Facts& other) {
  const Facts a = compared_part(kind, one);
  const Facts b = compared_part(kind, other);
  if (one.tensors.size() > 1 && one.tensors.size() == other.tensors.size()) {
    for (std::size_t i = 0; i < one.tensors.size(); ++i) {
      if (a.tensors[i] == b.tensors[i]) continue;
      return {fmt::format("{} as tensor {} of {}", tensor_text(one.tensors[i]), i, one.tensors.size()),
              tensor_text(other.tensors[i])};
    }
  }
  return {text_of(kind, one), text_of(kind, other)};
}

}  // namespace

std::string full_name(const Key& key) { return key.number > 0 ? key.name + std::to_string(key.number) : key.name; }

std::string name_of(const Key& key) {
  const std::string name = full_name(key);
  std::string shown;
  std::string_view rest = name;
  while (!rest.empty() && name.size() - rest.size() < kMostShown) {
    const std::size_t length = character_length(rest);
    if (length > 0) {
      shown += rest.substr(0, length);
    } else {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(rest.front()));
    }
    rest.remove_prefix(std::max<std::size_t>(length, 1));
  }
  if (!rest.empty()) shown += "...";
  return fmt::format("{} '{}'", word_of(key.kind), shown);
}

std::string text_of(Kind kind, const Facts& facts) {
  if (kind == Kind::add_set) return fmt::format("ranks [{}]", fmt::join(facts.ranks, ", "));
  if (kind == Kind::remove_set) return fmt::format("set {}", fmt::join(facts.ranks, ", "));
  std::vector<std::string> parts;
  for (const TensorFacts& tensor : facts.tensors) {
    if (parts.size() == kMostTensors) {
      parts.push_back(fmt::format("... ({} tensors)", facts.tensors.size()));
      break;
    }
    parts.push_back(tensor_text(tensor));
  }
  if (kind == Kind::all_reduce || kind == Kind::reduce_scatter) parts.emplace_back(to_string(facts.op));
  if (kind == Kind::broadcast) parts.push_back(fmt::format("root rank {}", facts.root));
  if (facts.prescale != 1) parts.push_back(fmt::format("prescale factor {}", facts.prescale));
  if (facts.postscale != 1) parts.push_back(fmt::format("postscale factor {}", facts.postscale));
  if (!facts.tensors.empty()) parts.emplace_back(facts.device == DeviceType::cpu ? "on the CPU" : "on a GPU");
  return fmt::format("{}", fmt::join(parts, ", "));
}

bool is_compared_part(const Facts& compared, Kind kind, const Facts& facts) {
  return has_free_rows(kind) ? compared == compared_part(kind, facts) : compared == facts;
}

Facts compared_part(Kind kind, Facts facts) {
  if (!has_free_rows(kind)) return facts;
  for (TensorFacts& tensor : facts.tensors) {
    if (!tensor.shape.empty()) tensor.shape.front() = 0;
  }
  return facts;
}

bool may_be_fused(const Request& one, const Request& other) noexcept {
  if (one.key.kind != Kind::all_reduce || other.key.kind != Kind::all_reduce) return false;
  const auto& tensors = one.facts.tensors;
  const auto& others = other.facts.tensors;
  return !tensors.empty() && !others.empty() && tensors.front().dtype == others.front().dtype &&
         one.facts.op == other.facts.op && one.facts.device == other.facts.device;
}

std::optional<ErrorDetail> compare(const Key& key, const std::map<int, Facts>& facts) {
  if (facts.empty()) return std::nullopt;
  const auto& [first, expected] = *facts.begin();
  const Facts reference = compared_part(key.kind, expected);
  std::vector<int> like_first;
  std::vector<int> different;
  const Facts* other = nullptr;  // of those, the first
  for (const auto& [rank, own] : facts) {
    if (compared_part(key.kind, own) == reference) {
      like_first.push_back(rank);
    } else if (other == nullptr || compared_part(key.kind, own) == compared_part(key.kind, *other)) {
      if (other == nullptr) other = &own;
      different.push_back(rank);
    }
  }
  if (other == nullptr) return std::nullopt;
  const auto [theirs, its] = both_sides(key.kind, expected, *other);
  std::vector<int> ranks = like_first;
  ranks.insert(ranks.end(), different.begin(), different.end());
  std::sort(ranks.begin(), ranks.end());
  return ErrorDetail{
      .code = ErrorCode::mismatch,
      .attempted = name_of(key),
      .cause = fmt::format("{} {} {}, {} {} {}", format_ranks(like_first), like_first.size() == 1 ? "has" : "have",
                           theirs, format_ranks(different), different.size() == 1 ? "has" : "have", its),
      .ranks = std::move(ranks),
      .hint = "give the same on all ranks, or give different operations different names"};
}

}  // namespace named
}  // namespace ddp
