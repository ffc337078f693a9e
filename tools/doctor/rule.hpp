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

// The families of rules.

std::span<const Rule> environment_rules();  ///< environment variables
std::span<const Rule> nccl_rules();         ///< NCCL's version, log and timeouts
std::span<const Rule> host_rules();         ///< limits, /dev/shm, namespaces
std::span<const Rule> processor_rules();    ///< cores, binding, cgroups
std::span<const Rule> name_rules();         ///< host names, addresses of names, clocks
std::span<const Rule> interface_rules();    ///< which interfaces NCCL and libddp use
std::span<const Rule> network_rules();      ///< what lies between these interfaces
std::span<const Rule> rdma_rules();         ///< RDMA devices and their filter
std::span<const Rule> plugin_rules();       ///< NCCL's plugins, settings of networks that are not here
std::span<const Rule> gpu_adapter_rules();  ///< RDMA adapters that NCCL may use for each GPU
std::span<const Rule> gpu_fabric_rules();   ///< NVLink by NVSwitches: Fabric Manager, IMEX
std::span<const Rule> gpu_rules();          ///< GPUs, and PCIe above them
std::span<const Rule> gpu_health_rules();   ///< memory errors, slowdown
std::span<const Rule> version_rules();      ///< software that must agree

}  // namespace ddp::tools::doctor
