#include <ddp/cpu_set.hpp>

#include <algorithm>
#include <bit>
#include <charconv>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp {
namespace {

constexpr int kBits = 64;

[[noreturn]] void reject(std::string cause) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "making a set of processors",
               .cause = std::move(cause),
               .hint = fmt::format("processors are numbered from 0 to {}; a list looks like 0-3,8", CpuSet::kLargest)}};
}

int parse_number(std::string_view text, std::string_view whole) {
  int number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size() || number < 0 || number > CpuSet::kLargest) {
    reject(fmt::format("'{}' in '{}' is not a processor number", text, whole));
  }
  return number;
}

}  // namespace

CpuSet::CpuSet(const std::vector<int>& cpus) {
  for (const int cpu : cpus) insert(cpu);
}

CpuSet CpuSet::parse(std::string_view list) {
  CpuSet set;
  const std::string_view whole = list;
  while (!list.empty()) {
    const auto comma = list.find(',');
    const std::string_view part = list.substr(0, comma);
    const auto dash = part.find('-');
    const int first = parse_number(part.substr(0, dash), whole);
    const int last = dash == std::string_view::npos ? first : parse_number(part.substr(dash + 1), whole);
    if (last < first) reject(fmt::format("'{}' in '{}' runs backwards", part, whole));
    for (int cpu = first; cpu <= last; ++cpu) set.insert(cpu);
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
    if (list.empty()) reject(fmt::format("'{}' ends with a comma", whole));
  }
  return set;
}

int CpuSet::count() const noexcept {
  int count = 0;
  for (const auto word : words_) count += std::popcount(word);
  return count;
}

bool CpuSet::contains(int cpu) const noexcept {
  const auto word = static_cast<std::size_t>(cpu / kBits);
  return cpu >= 0 && word < words_.size() && ((words_[word] >> (cpu % kBits)) & 1U) != 0;
}

bool CpuSet::contains(const CpuSet& other) const noexcept {
  if (other.words_.size() > words_.size()) return false;
  for (std::size_t i = 0; i < other.words_.size(); ++i) {
    if ((other.words_[i] & ~words_[i]) != 0) return false;
  }
  return true;
}

bool CpuSet::intersects(const CpuSet& other) const noexcept {
  for (std::size_t i = 0; i < std::min(words_.size(), other.words_.size()); ++i) {
    if ((words_[i] & other.words_[i]) != 0) return true;
  }
  return false;
}

int CpuSet::first() const noexcept {
  for (std::size_t i = 0; i < words_.size(); ++i) {
    if (words_[i] != 0) return static_cast<int>(i) * kBits + std::countr_zero(words_[i]);
  }
  return -1;
}

void CpuSet::insert(int cpu) {
  if (cpu < 0 || cpu > kLargest) reject(fmt::format("{} is not a processor number", cpu));
  const auto word = static_cast<std::size_t>(cpu / kBits);
  if (word >= words_.size()) words_.resize(word + 1);
  words_[word] |= 1ULL << (cpu % kBits);
}

CpuSet CpuSet::operator|(const CpuSet& other) const {
  CpuSet result = *this;
  if (other.words_.size() > words_.size()) result.words_.resize(other.words_.size());
  for (std::size_t i = 0; i < other.words_.size(); ++i) result.words_[i] |= other.words_[i];
  return result;
}

CpuSet CpuSet::operator&(const CpuSet& other) const {
  CpuSet result = *this;
  result.words_.resize(std::min(words_.size(), other.words_.size()));
  for (std::size_t i = 0; i < result.words_.size(); ++i) result.words_[i] &= other.words_[i];
  result.trim();
  return result;
}

CpuSet CpuSet::operator-(const CpuSet& other) const {
  CpuSet result = *this;
  for (std::size_t i = 0; i < std::min(words_.size(), other.words_.size()); ++i) result.words_[i] &= ~other.words_[i];
  result.trim();
  return result;
}

std::vector<int> CpuSet::to_vector() const {
  std::vector<int> cpus;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    for (auto word = words_[i]; word != 0; word &= word - 1) {
      cpus.push_back(static_cast<int>(i) * kBits + std::countr_zero(word));
    }
  }
  return cpus;
}

std::string CpuSet::to_string() const {
  std::string text;
  const std::vector<int> cpus = to_vector();
  for (std::size_t first = 0; first < cpus.size();) {
    std::size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += first == last ? fmt::to_string(cpus[first]) : fmt::format("{}-{}", cpus[first], cpus[last]);
    first = last + 1;
  }
  return text;
}

void CpuSet::trim() {
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

}  // namespace ddp
