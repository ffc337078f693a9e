// What holds for every machine and every request, on random ones. Failures name the seed of the machine.
#include "support/sanitized.hpp"
#include "unit/topology/dice.hpp"
#include "unit/topology/machine_summary.hpp"
#include "unit/topology/machines.hpp"

namespace ddp {
namespace {

constexpr std::uint32_t kMachines = ::ddp::test::cases(800);
constexpr BindPolicy kPolicies[] = {BindPolicy::numa, BindPolicy::core, BindPolicy::socket, BindPolicy::none};

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// The core that each processor is of.
std::map<int, int> core_of_cpu(const Topology& topology) {
  std::map<int, int> core_of;
  for (std::size_t core = 0; core < topology.cores().size(); ++core) {
    for (const int cpu : topology.cores()[core].cpus.to_vector()) core_of[cpu] = static_cast<int>(core);
  }
  return core_of;
}

std::set<int> cores_of(const std::map<int, int>& core_of, const CpuSet& cpus) {
  std::set<int> cores;
  for (const int cpu : cpus.to_vector()) cores.insert(core_of.at(cpu));
  return cores;
}

CpuSet allowed_for(const Topology& topology, const PlacementRequest& request, int rank) {
  if (request.allowed.empty()) return topology.allowed_cpus();
  return request.allowed.size() == 1 ? request.allowed[0] : request.allowed[at(rank)];
}

bool one_set(const PlacementRequest& request) {
  return std::all_of(request.allowed.begin(), request.allowed.end(),
                     [&](const CpuSet& set) { return set == request.allowed.front(); });
}

/// Cores: not empty, inside what is allowed, told truly, and shared only where there are too few.
void check_cores(const Topology& topology, const PlacementRequest& request, const std::vector<Placement>& placements) {
  const std::map<int, int> core_of = core_of_cpu(topology);
  std::map<int, int> users;
  for (const Placement& placement : placements) {
    const CpuSet allowed = allowed_for(topology, request, placement.local_rank);
    EXPECT_FALSE(placement.cpus.empty());
    EXPECT_TRUE(allowed.contains(placement.cpus)) << placement.cpus.to_string() << " in " << allowed.to_string();
    const std::set<int> cores = cores_of(core_of, placement.cpus);
    EXPECT_EQ(placement.num_cores, static_cast<int>(cores.size()));
    std::set<int> numa_nodes;
    for (const int core : cores) {
      ++users[core];
      const Core& of = topology.cores()[at(core)];
      if (of.numa_node >= 0) numa_nodes.insert(of.numa_node);
      EXPECT_TRUE(placement.cpus.contains(of.cpus & allowed)) << "a part of core " << core << " is left out";
    }
    EXPECT_EQ(placement.numa_nodes, std::vector<int>(numa_nodes.begin(), numa_nodes.end()));
    if (request.policy == BindPolicy::core) {
      EXPECT_EQ(cores.size(), 1U);
    }
    if (request.policy == BindPolicy::none) {
      EXPECT_EQ(placement.cpus, allowed & topology.cpus());
    }
  }
  for (const Placement& placement : placements) {
    const std::set<int> cores = cores_of(core_of, placement.cpus);
    const bool shared = std::any_of(cores.begin(), cores.end(), [&](int core) { return users.at(core) > 1; });
    EXPECT_EQ(placement.cores_shared, shared);
  }
  const std::set<int> all = cores_of(core_of, allowed_for(topology, request, 0) & topology.cpus());
  if (one_set(request) && request.policy != BindPolicy::none) {
    for (const auto& [core, count] : users) {
      if (all.size() >= placements.size()) {
        EXPECT_EQ(count, 1) << "core " << core << " is shared by " << count;
      }
    }
    if (all.size() <= placements.size()) {
      EXPECT_EQ(users.size(), all.size()) << "a core is idle while others are shared";
    }
  }
}

/// The GPUs that may be given out, by the documented rule.
std::vector<int> usable_gpus(const Topology& topology, const PlacementRequest& request) {
  std::vector<int> gpus;
  if (request.gpus) {
    for (const int index : *request.gpus) {
      if (topology.gpus()[at(index)].visible) gpus.push_back(index);
    }
    return gpus;
  }
  for (const Vendor vendor : {Vendor::nvidia, Vendor::amd, Vendor::intel, Vendor::other}) {
    std::vector<int> of_vendor;
    for (const Gpu& gpu : topology.gpus()) {
      if (gpu.visible && gpu.vendor == vendor) of_vendor.push_back(gpu.index);
    }
    if (of_vendor.size() > gpus.size()) gpus = of_vendor;
  }
  return gpus;
}

void check_gpus(const Topology& topology, const PlacementRequest& request, const std::vector<Placement>& placements) {
  const std::vector<int> usable = usable_gpus(topology, request);
  std::map<int, int> users;
  for (const Placement& placement : placements) {
    ASSERT_EQ(placement.gpu.has_value(), !usable.empty());
    if (!placement.gpu) continue;
    EXPECT_NE(std::find(usable.begin(), usable.end(), *placement.gpu), usable.end()) << *placement.gpu;
    ++users[*placement.gpu];
  }
  if (usable.empty()) return;
  const std::size_t most = (placements.size() + usable.size() - 1) / usable.size();  // 1 where there are enough
  for (const auto& [gpu, count] : users) EXPECT_LE(count, static_cast<int>(most)) << "GPU " << gpu;
  if (placements.size() >= usable.size()) {
    EXPECT_EQ(users.size(), usable.size()) << "a GPU is idle";
  }
  for (const Placement& placement : placements) {
    EXPECT_EQ(placement.gpu_shared, users.at(*placement.gpu) > 1);
    if (request.gpus) {
      EXPECT_EQ(*placement.gpu, usable[at(placement.local_rank) % usable.size()]);
    } else if (one_set(request) && placement.local_rank > 0) {
      EXPECT_LE(*placements[at(placement.local_rank - 1)].gpu, *placement.gpu) << "local ranks ascend with GPUs";
    }
  }
}

/// How near a NIC is to where a rank is: its GPU, or the NUMA nodes of its cores.
using Nearness = std::pair<Path, bool>;
Nearness nearness(const Topology& topology, const Placement& placement, const Nic& nic) {
  Distance nearest{.path = Path::unknown, .other_package = true, .bridges = 0};
  if (placement.gpu) {
    nearest = topology.distance(topology.gpus()[at(*placement.gpu)], nic);
  } else {
    for (const int node : placement.numa_nodes) {
      nearest = std::min(nearest, topology.distance(nic.locality, topology.numa_nodes()[at(node)]));
    }
  }
  return {nearest.path, nearest.other_package};
}

/// The NICs that may be given out, by the documented rule.
std::set<int> usable_nics(const Topology& topology) {
  std::set<int> nics;
  double fastest = 0;
  for (const bool fabric : {true, false}) {
    for (const Nic& nic : topology.nics()) {
      if (!nic.usable || nic.fabric != fabric) continue;
      nics.insert(nic.index);
      fastest = std::max(fastest, nic.rate_gbps);
    }
    if (!nics.empty()) break;
  }
  std::erase_if(nics, [&](int nic) {
    const double rate = topology.nics()[at(nic)].rate_gbps;
    return rate > 0 && rate * 2 < fastest;
  });
  return nics;
}

void check_nics(const Topology& topology, const PlacementRequest& request, const std::vector<Placement>& placements) {
  const std::set<int> usable = usable_nics(topology);
  std::map<int, int> first;
  std::map<int, int> users;
  for (const Placement& placement : placements) {
    ASSERT_EQ(placement.nics.empty(), usable.empty());
    if (usable.empty()) continue;
    ++first[placement.nics.front()];
    for (const int nic : placement.nics) {
      EXPECT_EQ(usable.count(nic), 1U) << "NIC " << nic;
      ++users[nic];
    }
  }
  if (usable.empty()) return;
  for (const Placement& placement : placements) {
    for (const int nic : placement.nics) {
      if (nic != placement.nics.front()) {
        EXPECT_EQ(users[nic], 1) << "a further NIC " << nic << " is somebody else's";
      }
    }
    // Without GPU and binding the cores that count are not told, and there may be no NUMA nodes to measure from.
    if (!placement.gpu && (request.policy == BindPolicy::none || placement.numa_nodes.empty())) continue;
    const int own = placement.nics.front();
    const Nearness near = nearness(topology, placement, topology.nics()[at(own)]);
    for (const int nic : usable) {
      const Nearness other = nearness(topology, placement, topology.nics()[at(nic)]);
      EXPECT_GE(other, near) << "NIC " << nic << " is nearer to rank " << placement.local_rank << " than " << own;
      // A GPU of unknown place is no measure; then cores decide.
      if (other.first == Path::unknown) continue;
      if (other == near && first.count(nic) == 0) {
        EXPECT_EQ(first.at(own), 1) << "NIC " << own << " is used twice while " << nic << " is idle";
      }
    }
  }
}

bool same(const std::vector<Placement>& a, const std::vector<Placement>& b) {
  const auto flat = [](const std::vector<Placement>& placements) {
    std::string text;
    for (const Placement& each : placements) {
      text += fmt::format("{} {} {} {} {} {}\n", each.local_rank, each.gpu.value_or(-1), each.gpu_shared,
                          each.cpus.to_string(), each.num_cores, each.cores_shared);
      for (const auto* list : {&each.nics, &each.numa_nodes}) {
        for (const int value : *list) text += fmt::format(" {}", value);
        text += '\n';
      }
      for (const Decision& decision : each.decisions) {
        text += decision.subject + '|' + decision.chosen + '|' + decision.reason;
        for (const std::string& other : decision.alternatives) text += '|' + other;
      }
    }
    return text;
  };
  return flat(a) == flat(b);
}

/// Requests of every kind: allowed sets none, one for all, one for each that overlap, and one for each that do not.
PlacementRequest random_request(ddp::test::Dice& dice, const Topology& topology, BindPolicy policy) {
  PlacementRequest request;
  const int num_cores = static_cast<int>(topology.cores().size());
  request.num_ranks = dice.one_in(4) ? dice.between(1, num_cores * 2) : dice.between(1, 12);
  request.policy = policy;
  const std::vector<int> cpus = topology.cpus().to_vector();
  const auto some = [&](int one_in) {
    CpuSet set;
    for (const int cpu : cpus) {
      if (dice.one_in(one_in)) set.insert(cpu);
    }
    if (set.empty()) set.insert(cpus[at(dice.between(0, static_cast<int>(cpus.size()) - 1))]);
    return set;
  };
  switch (dice.between(0, 4)) {
    case 0: request.allowed = {some(2)}; break;
    case 1:
      for (int rank = 0; rank < request.num_ranks; ++rank) request.allowed.push_back(some(3));
      break;
    case 2: {
      request.num_ranks = std::min(request.num_ranks, static_cast<int>(cpus.size()));
      request.allowed.resize(at(request.num_ranks));
      const bool pairs = dice.one_in(2);  // ranks 2i and 2i + 1 have the same set
      const int owners = pairs ? (request.num_ranks + 1) / 2 : request.num_ranks;
      for (std::size_t i = 0; i < cpus.size(); ++i) {
        const int owner = static_cast<int>(i) < owners ? static_cast<int>(i) : dice.between(0, owners - 1);
        for (int rank = 0; rank < request.num_ranks; ++rank) {
          if ((pairs ? rank / 2 : rank) == owner) request.allowed[at(rank)].insert(cpus[i]);
        }
      }
      break;
    }
    default: break;
  }
  if (dice.one_in(5) && !topology.gpus().empty()) {
    std::vector<int> order;
    for (const Gpu& gpu : topology.gpus()) order.push_back(gpu.index);
    dice.shuffle(order);
    order.resize(at(dice.between(0, static_cast<int>(order.size()))));
    request.gpus = order;
  }
  return request;
}

void check(const Topology& topology, const PlacementRequest& request) {
  const std::vector<Placement> placements = place(topology, request);
  ASSERT_EQ(placements.size(), at(request.num_ranks));
  for (std::size_t rank = 0; rank < placements.size(); ++rank) {
    EXPECT_EQ(placements[rank].local_rank, static_cast<int>(rank));
    EXPECT_EQ(placements[rank].decisions.size(), 4U);
    for (const Decision& decision : placements[rank].decisions) {
      EXPECT_FALSE(decision.chosen.empty() || decision.reason.empty()) << decision.subject;
      EXPECT_LE(decision.alternatives.size(), 16U);
    }
  }
  check_cores(topology, request, placements);
  check_gpus(topology, request, placements);
  check_nics(topology, request, placements);
  EXPECT_TRUE(same(placements, place(topology, request))) << "a second call gives something else";
}

std::string describe(const PlacementRequest& request) {
  std::string text = fmt::format("{} ranks, policy {}", request.num_ranks, to_string(request.policy));
  for (const CpuSet& set : request.allowed) text += "; " + set.to_string();
  if (request.gpus) {
    text += "; GPUs";
    for (const int gpu : *request.gpus) text += fmt::format(" {}", gpu);
  }
  return text;
}

TEST(PlacementProperty, RandomMachines) {
  for (std::uint32_t seed = 1; seed <= kMachines; ++seed) {
    const Topology topology = Topology::from_parts(ddp::test::random_machine(seed));
    ddp::test::Dice dice(seed + 1'000'000);
    for (const BindPolicy policy : kPolicies) {
      const PlacementRequest request = random_request(dice, topology, policy);
      SCOPED_TRACE(fmt::format("random_machine({}), {}", seed, describe(request)));
      check(topology, request);
      if (HasFailure()) return;
    }
  }
}

TEST(PlacementProperty, RecordedMachines) {
  const auto folder = topology::recorded_machines();
  if (!folder) GTEST_SKIP() << "no recorded machines: set DDP_RECORDED_TOPOLOGIES to a folder of them";
  int machines = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*folder)) {
    if (entry.path().extension() != ".xml") continue;
    ++machines;
    const Topology topology = Topology::from_xml_file(entry.path().string());
    ddp::test::Dice dice(7);
    for (const BindPolicy policy : kPolicies) {
      for (int num_ranks = 1; num_ranks <= 20; num_ranks += ::ddp::test::kSanitized ? 6 : 1) {
        const PlacementRequest request{.num_ranks = num_ranks, .policy = policy, .gpus = std::nullopt};
        SCOPED_TRACE(fmt::format("{}, {}", entry.path().filename().string(), describe(request)));
        check(topology, request);
        if (HasFailure()) return;
      }
      const PlacementRequest request = random_request(dice, topology, policy);
      SCOPED_TRACE(fmt::format("{}, {}", entry.path().filename().string(), describe(request)));
      check(topology, request);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(machines, 0) << *folder;
}

}  // namespace
}  // namespace ddp
