#include "topology/placement/balanced_assignment.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <tuple>

namespace ddp::topology {
namespace {

constexpr int kFar = std::numeric_limits<int>::max();

/// Adds users one by one. Each addition may move earlier users along a chain: the new user takes a target, one of whose
/// users goes to another target, and so on. The chain that ends at the least used target, and of those the cheapest, is
/// the shortest path of the flow, which keeps the assignment of the users so far optimal.
class Assignment {
 public:
  Assignment(const std::vector<std::vector<Option>>& options, int num_targets)
      : options_(options), users_(at(num_targets)), target_(options.size(), -1), cost_(options.size(), 0) {}

  void add(int user) {
    if (options_[at(user)].empty()) return;
    find_chains(user);
    int end = -1;
    for (int target = 0; target < static_cast<int>(users_.size()); ++target) {
      if (distance_[at(target)] == kFar) continue;
      if (end < 0 || std::tuple(users_[at(target)].size(), distance_[at(target)]) <
                         std::tuple(users_[at(end)].size(), distance_[at(end)])) {
        end = target;
      }
    }
    for (int target = end; target >= 0;) {
      const int mover = mover_[at(target)];
      const int before = target_[at(mover)];
      move(mover, target);
      target = before;
    }
  }

  std::vector<int> targets() && { return std::move(target_); }

 private:
  /// Fills distance_ (what the cheapest chain to a target adds to the costs) and mover_ (the user who would take the
  /// target at its end). There are no negative cycles, because the assignment so far is optimal.
  void find_chains(int user) {
    distance_.assign(users_.size(), kFar);
    mover_.assign(users_.size(), -1);
    std::vector<char> waiting(users_.size(), 0);
    std::deque<int> queue;
    const auto reach = [&](int by, const Option& option, int distance) {
      if (distance >= distance_[at(option.target)]) return;
      distance_[at(option.target)] = distance;
      mover_[at(option.target)] = by;
      if (waiting[at(option.target)] == 0) queue.push_back(option.target);
      waiting[at(option.target)] = 1;
    };
    for (const Option& option : options_[at(user)]) reach(user, option, option.cost);
    while (!queue.empty()) {
      const int target = queue.front();
      queue.pop_front();
      waiting[at(target)] = 0;
      for (const int other : users_[at(target)]) {
        const int without = distance_[at(target)] - cost_[at(other)];
        for (const Option& option : options_[at(other)]) reach(other, option, without + option.cost);
      }
    }
  }

  void move(int user, int target) {
    if (target_[at(user)] >= 0) std::erase(users_[at(target_[at(user)])], user);
    users_[at(target)].push_back(user);
    target_[at(user)] = target;
    const auto& options = options_[at(user)];
    cost_[at(user)] = std::find_if(options.begin(), options.end(), [&](const Option& option) {
                        return option.target == target;
                      })->cost;
  }

  const std::vector<std::vector<Option>>& options_;
  std::vector<std::vector<int>> users_;  ///< of each target
  std::vector<int> target_;              ///< of each user
  std::vector<int> cost_;                ///< that each user has with its target
  std::vector<int> distance_;
  std::vector<int> mover_;
};

bool less(const std::vector<Option>& a, const std::vector<Option>& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](const Option& x, const Option& y) {
    return std::tuple(x.target, x.cost) < std::tuple(y.target, y.cost);
  });
}

/// Lets users with equal options have ascending targets, which changes neither use nor costs.
void order_equal_users(const std::vector<std::vector<Option>>& options, std::vector<int>& targets) {
  std::vector<int> users(options.size());
  std::iota(users.begin(), users.end(), 0);
  std::stable_sort(users.begin(), users.end(), [&](int a, int b) { return less(options[at(a)], options[at(b)]); });
  for (std::size_t first = 0; first < users.size();) {
    std::size_t end = first;
    std::vector<int> owned;
    while (end < users.size() && options[at(users[end])] == options[at(users[first])]) {
      owned.push_back(targets[at(users[end++])]);
    }
    std::sort(owned.begin(), owned.end());
    for (std::size_t i = first; i < end; ++i) targets[at(users[i])] = owned[i - first];
    first = end;
  }
}

}  // namespace

std::vector<int> assign_balanced(const std::vector<std::vector<Option>>& options, int num_targets) {
  Assignment assignment(options, num_targets);
  for (int user = 0; user < static_cast<int>(options.size()); ++user) assignment.add(user);
  std::vector<int> targets = std::move(assignment).targets();
  order_equal_users(options, targets);
  return targets;
}

}  // namespace ddp::topology
