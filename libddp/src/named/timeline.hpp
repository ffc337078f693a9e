// A job's timeline in one file: a Chrome trace with Horovod's names of events.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "named/messages.hpp"

namespace ddp::named {

/// Times are in microseconds since the epoch, by rank 0's clock. Thread-safe.
class Timeline {
 public:
  /// Makes the file, or empties it. Throws Error(system).
  Timeline(std::string file, bool mark_exchanges);

  /// What to add to times of @p rank, whose clock said @p answered between @p asked and @p heard.
  void set_clock(int rank, std::int64_t asked, std::int64_t answered, std::int64_t heard);
  void add(int rank, const std::vector<Span>& spans, std::uint64_t dropped);
  /// Appends what was added: the file is a whole JSON document before and after the one write.
  void write();

 private:
  /// A thread of the trace: of a name, or one after the other of operations without one.
  struct Row {
    std::uint64_t thread = 0;
    std::int64_t end = 0;  ///< of its last event
  };

  Row& row_of(int rank, const Key& key, std::int64_t begin);
  void add_event(int rank, std::uint64_t thread, const std::string& name, std::int64_t start, std::int64_t end,
                 std::uint64_t number);
  void add_text(const std::string& event);

  const std::string file_;
  const bool mark_exchanges_;
  base::UniqueFd fd_;

  std::mutex mutex_;  ///< guards what follows
  std::map<int, std::int64_t> moved_;
  /// Of each name, one; of each series without names, as many as were under way at a time.
  std::map<std::pair<int, Key>, std::vector<Row>> rows_;
  std::map<int, std::uint64_t> counts_;  ///< of each rank's threads
  std::string text_;                     ///< not written

  std::mutex writing_;    ///< guards what follows
  std::int64_t end_ = 0;  ///< of the last event in the file
  bool failed_ = false;
};

}  // namespace ddp::named
