// Rank 0's part: collects what ranks announce, compares it, and decides what is ready and in which order all take it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "named/messages.hpp"
#include "named/period.hpp"

namespace ddp::named {

/// Knows nothing of connections. One call at a time. All ranks are ranks of the world.
class Coordinator {
 public:
  using Time = Deadline::Clock::time_point;
  using Letter = std::pair<int, FromCoordinator>;  ///< to whom, what

  Coordinator(std::vector<int> world, std::size_t fusion_bytes);

  void announce(int rank, Announcement announcement, Time now);
  void join(int rank);
  /// What is ready now. Empty most of the time.
  std::vector<Letter> decide();

  /// Since when the operation that waits longest has done so; nothing if none waits.
  std::optional<Time> oldest() const;
  /// For a report: one line for each operation that has waited since @p limit, with the ranks that are missing, and
  /// what those wait for themselves, first of all what has a similar name.
  std::vector<std::string> stalled(Time limit) const;
  /// Whom what has waited since @p limit waits for.
  std::set<int> awaited(Time limit) const;
  /// That what has waited since @p limit has failed: names the first one and its missing ranks. Nothing if none has.
  std::optional<ErrorDetail> overdue(Time limit) const;

 private:
  struct Entry {
    std::map<int, Facts> facts{};
    Time since{};
    std::uint64_t serial = 0;
  };
  using Batches = std::vector<std::vector<Request>>;

  struct Set {
    std::vector<int> members{};
    std::uint64_t epoch = 0;
    std::map<Key, Entry> entries{};
    std::vector<Key> complete{};  ///< all members have announced or joined; in that order

    // of a repetition
    std::vector<std::vector<Key>> cycle{};  ///< what has been decided since it began
    std::map<Key, std::uint64_t> first{};   ///< in the cycle, for each series of operations without a name: its number
    std::map<Key, std::uint64_t> last{};    ///< for each series: the number that has been decided last
    Period unnamed{};                       ///< of operations without a name, since the last one that has one
    std::map<Key, Facts> cycle_facts{};
    std::map<Key, Facts> last_facts{};
    int repeated = 0;
    int needed = 1;  ///< repetitions until the order is learned
  };

  bool is_complete(const Set& set, const Entry& entry) const;
  std::vector<int> missing(const Set& set, const Entry& entry) const;
  /// The name of an operation that @p rank waits in and that may have been meant to be @p key; empty: there is none.
  std::string similar(int rank, const Key& key) const;
  std::optional<ErrorDetail> problem_of(const Set& set, const Key& key, const Entry& entry) const;
  void decide_in(int number, Set& set, std::vector<Letter>& letters);
  /// How @p key is known in the cycle: a number counts from its beginning.
  static Key place_of(Set& set, const Key& key);
  bool repeats(Set& set, const Key& key, const Facts& facts);
  /// The order that the cycle is.
  Learned learned_order(int number, const Set& set) const;
  static void forget_cycle(Set& set);
  static std::vector<std::int64_t> eager_bytes(const Set& set);
  void note(Set& set, const Key& key, const Facts& facts, bool joins_last);
  void carry_out(const Key& key, const Facts& facts);
  bool joins(const std::vector<Request>& batch, const Request& request) const;
  void send_decision(int number, const Set& set, const Batches& batches, const std::vector<Failure>& failures,
                     std::vector<Letter>& letters) const;

  const std::size_t fusion_bytes_;
  std::map<int, Set> sets_;
  int added_ = 0;
  std::set<int> joined_;
  int last_joined_ = 0;
  std::uint64_t serial_ = 0;
};

/// Bytes of all tensors.
std::size_t size_of(const Facts& facts) noexcept;

}  // namespace ddp::named
