// A rule of the doctor: what it says is data, when it holds is a small function of the gathered facts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/facts.hpp"

namespace ddp::tools::doctor {

enum class Severity : std::uint8_t { info, warning, error };
std::string_view to_string(Severity severity) noexcept;  ///< "info", "warning", "error"

class Findings;

struct Rule {
  std::string_view id;  ///< "shm-size"
  Severity severity;
  std::string_view title;    ///< "/dev/shm is too small"
  std::string_view meaning;  ///< what goes wrong, in a sentence or two
  std::string_view fix;      ///< command or setting
  void (*check)(const JobFacts& job, Findings& findings);
};

/// What a rule has found, on ranks of which all that is said is equal.
struct Finding {
  const Rule* rule = nullptr;
  std::vector<int> ranks{};          ///< ascending
  std::vector<std::string> hosts{};  ///< of these ranks, by node number
  std::string evidence;              ///< one line
  std::string fix;                   ///< the rule's, or one that fits this job
};

/// Where a rule puts what it finds; equal evidence is joined.
class Findings {
 public:
  explicit Findings(const JobFacts& job) : job_(job) {}

  void begin(const Rule& rule) { rule_ = &rule; }
  const Rule& rule() const { return *rule_; }
  /// @param fix empty: the rule's.
  void on_rank(const RankFacts& rank, std::string evidence, std::string fix = {});
  void on_ranks(std::vector<int> ranks, std::string evidence, std::string fix = {});
  void on_node(const NodeRecord& node, std::string evidence, std::string fix = {});
  /// Errors first, then in the order of the rules.
  std::vector<Finding> take();

 private:
  const JobFacts& job_;
  const Rule* rule_ = nullptr;
  std::vector<Finding> found_;
};

/// All rules, by family; ids are unique.
struct Family {
  std::string_view name;  ///< "Network"
  std::span<const Rule> rules;
};
std::span<const Family> families();

/// What holds for the job, of the rules that @p wanted accepts.
std::vector<Finding> examine(const JobFacts& job, const std::function<bool(const Rule&)>& wanted);

}  // namespace ddp::tools::doctor
