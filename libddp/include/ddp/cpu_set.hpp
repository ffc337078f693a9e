// A set of processors (PUs: hardware threads), by the operating system's numbers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp {

/// A set of processor numbers as sched_setaffinity(2) and /proc use them. A value: copying copies the set.
/// Thread-safety: like a std::vector.
class CpuSet {
 public:
  /// The largest accepted number. Linux numbers processors below 8192 (CONFIG_NR_CPUS).
  static constexpr int kLargest = 65535;

  CpuSet() = default;
  /// Any order, repetitions allowed. Throws Error(invalid_argument) for numbers outside [0, kLargest].
  explicit CpuSet(const std::vector<int>& cpus);

  /// Reads the kernel's list format: "0-3,8,10-11"; empty text is the empty set. Throws Error(invalid_argument).
  static CpuSet parse(std::string_view list);

  bool empty() const noexcept { return words_.empty(); }  ///< it has no processor
  int count() const noexcept;                             ///< number of processors
  bool contains(int cpu) const noexcept;                  ///< @p cpu is in the set; false for invalid numbers
  bool contains(const CpuSet& other) const noexcept;      ///< @p other is a subset
  bool intersects(const CpuSet& other) const noexcept;    ///< they share a processor
  int first() const noexcept;                             ///< the smallest number; -1 if empty

  void insert(int cpu);                         ///< throws like the constructor
  CpuSet operator|(const CpuSet& other) const;  ///< union
  CpuSet operator&(const CpuSet& other) const;  ///< intersection
  CpuSet operator-(const CpuSet& other) const;  ///< without those of @p other

  std::vector<int> to_vector() const;  ///< ascending
  std::string to_string() const;       ///< the kernel's list format

  friend bool operator==(const CpuSet&, const CpuSet&) = default;

 private:
  void trim();
  std::vector<unsigned long long> words_;  ///< 64 processors each; the last word is never 0
};

}  // namespace ddp
