// Faults that tests inject into calls and into work, by function, rank and number of the call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/fake_cuda/symbols.hpp"

namespace fake_cuda {

class Faults {
 public:
  /// False if a rule of @p text cannot be read.
  bool add(std::string_view text);
  /// Also ends hanging calls and work.
  void clear();

  /// Does what the rules say about this call: may sleep, hang or kill. Returns what the call shall fail with.
  /// Called without locks.
  std::optional<CUresult> meet(std::string_view function, int rank);

 private:
  enum class Action { fail, delay, hang, kill, stop };
  struct Rule {
    std::string function;
    std::optional<int> rank;
    long first = 1;
    long last = 0;  ///< 0: no end
    Action action = Action::fail;
    long value = 0;
    long calls = 0;
  };
  static bool read(std::string_view text, Rule& rule);

  std::atomic<bool> any_ = false;
  std::mutex mutex_;
  std::condition_variable cleared_;
  long clearings_ = 0;
  std::vector<Rule> rules_;
};

Faults& faults();

/// fake_cuda_set_rank of this thread, else the process's rank by its environment, else -1.
int current_rank();

}  // namespace fake_cuda
