#include "pmix_server/job_namespace.hpp"

#include <pmix_server.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "kvs/pmix_library.hpp"
#include "pmix_server/server_functions.hpp"

namespace ddp::launcher {
namespace {

struct Free {
  void operator()(char* memory) const noexcept { std::free(memory); }
};
using CString = std::unique_ptr<char, Free>;

/// The array of strings that PMIx_server_setup_fork makes.
class EnvironmentArray {
 public:
  EnvironmentArray() = default;
  EnvironmentArray(const EnvironmentArray&) = delete;
  EnvironmentArray& operator=(const EnvironmentArray&) = delete;
  ~EnvironmentArray() {
    for (char** line = lines_; line != nullptr && *line != nullptr; ++line) std::free(*line);
    std::free(lines_);
  }
  char*** receive() { return &lines_; }
  char** lines() const { return lines_; }

 private:
  char** lines_ = nullptr;
};

CString compress(pmix_status_t (*generate)(const char*, char**), const std::string& plain, const char* attempted) {
  char* made = nullptr;
  kvs::require_pmix(generate(plain.c_str(), &made), attempted);
  return CString{made};
}

/// A JobShape with all that follows from it.
class Layout {
 public:
  explicit Layout(const JobShape& shape) : shape_(shape) {
    if (shape.node_rank < 0 || static_cast<std::size_t>(shape.node_rank) >= shape.nodes.size())
      refuse(fmt::format("there is no node {} among {}", shape.node_rank, shape.nodes.size()));
    if (shape.name_space.empty() || shape.name_space.size() > PMIX_MAX_NSLEN)
      refuse(fmt::format("the namespace's name has {} bytes, not 1 to {}", shape.name_space.size(), PMIX_MAX_NSLEN));
    std::set<std::string> taken;
    for (const NodeShape& node : shape.nodes) taken.insert(node.host);
    std::set<std::string> seen;
    for (std::size_t number = 0; number < shape.nodes.size(); ++number) {
      const NodeShape& node = shape.nodes[number];
      if (node.num_ranks < 1) refuse(fmt::format("node {} ({}) has {} ranks", number, node.host, node.num_ranks));
      first_.push_back(num_ranks_);
      num_ranks_ += node.num_ranks;
      std::string name = node.host;
      if (!seen.insert(name).second) {
        for (auto suffix = number; !taken.insert(name = fmt::format("{}-{}", node.host, suffix)).second; ++suffix) {
        }
      }
      names_.push_back(std::move(name));
    }
  }

  int num_nodes() const { return static_cast<int>(shape_.nodes.size()); }
  int num_ranks() const { return num_ranks_; }
  int this_node() const { return shape_.node_rank; }
  int first_rank(int node) const { return first_[static_cast<std::size_t>(node)]; }
  int ranks_on(int node) const { return shape_.nodes[static_cast<std::size_t>(node)].num_ranks; }
  const std::string& name_space() const { return shape_.name_space; }
  /// The host's name. Libpmix knows nodes by name and would take two agents on one host for one node, so from the
  /// second one on the name gets the node's number: "n0", "n0-1".
  const std::string& name(int node) const { return names_[static_cast<std::size_t>(node)]; }

  /// "0,1,2"
  std::string ranks_text(int node) const {
    std::string text;
    for (int local = 0; local < ranks_on(node); ++local)
      text += fmt::format("{}{}", local == 0 ? "" : ",", first_rank(node) + local);
    return text;
  }
  /// "(vector,(0,2,4),(2,1,3))": of each block, the first node, the number of nodes, and ranks on each.
  std::string anl_map() const {
    std::string text = "(vector";
    for (int node = 0; node < num_nodes();) {
      int end = node;
      while (end < num_nodes() && ranks_on(end) == ranks_on(node)) ++end;
      text += fmt::format(",({},{},{})", node, end - node, ranks_on(node));
      node = end;
    }
    return text + ")";
  }

 private:
  [[noreturn]] static void refuse(std::string cause) {
    throw Error{
        {.code = ErrorCode::invalid_argument, .attempted = "describing the job to PMIx", .cause = std::move(cause)}};
  }

  const JobShape& shape_;
  int num_ranks_ = 0;
  std::vector<int> first_;  ///< by node
  std::vector<std::string> names_;
};

kvs::InfoList rank_data(const Layout& layout, int node, int local_rank) {
  const auto number = static_cast<std::uint32_t>(layout.first_rank(node) + local_rank);
  const auto local = static_cast<std::uint16_t>(local_rank);
  kvs::InfoList data;
  data.rank(PMIX_RANK, number)  // first: libraries before 6.1.1 take the rank of the rest from it
      .number16(PMIX_LOCAL_RANK, local)
      .number16(PMIX_NODE_RANK, local)
      .number32(PMIX_NODEID, static_cast<std::uint32_t>(node))
      .rank(PMIX_GLOBAL_RANK, number)
      .rank(PMIX_APP_RANK, number)
      .number32(PMIX_APPNUM, 0)
      .text(PMIX_HOSTNAME, layout.name(node));
  return data;
}

kvs::InfoList job_data(const Layout& layout, const std::string& directory) {
  std::string hosts;
  std::string ranks;
  for (int node = 0; node < layout.num_nodes(); ++node) {
    hosts += fmt::format("{}{}", node == 0 ? "" : ",", layout.name(node));
    ranks += fmt::format("{}{}", node == 0 ? "" : ";", layout.ranks_text(node));
  }
  const CString node_map = compress(pmix_server().generate_regex, hosts, "describing the hosts to PMIx");
  const CString proc_map = compress(pmix_server().generate_ppn, ranks, "describing the ranks to PMIx");
  const auto count = static_cast<std::uint32_t>(layout.num_ranks());
  const auto local_count = static_cast<std::uint32_t>(layout.ranks_on(layout.this_node()));

  kvs::InfoList data;
  data.number32(PMIX_JOB_SIZE, count)
      .number32(PMIX_UNIV_SIZE, count)
      .number32(PMIX_MAX_PROCS, count)
      .number32(PMIX_LOCAL_SIZE, local_count)
      .number32(PMIX_NODE_SIZE, local_count)
      .number32(PMIX_NUM_NODES, static_cast<std::uint32_t>(layout.num_nodes()))
      .number32(PMIX_JOB_NUM_APPS, 1)
      .number32(PMIX_APP_SIZE, count)
      .rank(PMIX_LOCALLDR, static_cast<pmix_rank_t>(layout.first_rank(layout.this_node())))
      .rank(PMIX_APPLDR, 0)
      .text(PMIX_JOBID, layout.name_space())
      .text(PMIX_LOCAL_PEERS, layout.ranks_text(layout.this_node()))
      .regex(PMIX_NODE_MAP, node_map.get())
      .regex(PMIX_PROC_MAP, proc_map.get())
      .text(PMIX_ANL_MAP, layout.anl_map())
      .text(PMIX_TMPDIR, directory)
      .text(PMIX_NSDIR, directory)
      .boolean(PMIX_TDIR_RMCLEAN, true)
      .boolean(PMIX_SPAWNED, false);
  for (int node = 0; node < layout.num_nodes(); ++node) {
    for (int local = 0; local < layout.ranks_on(node); ++local)
      data.list(PMIX_PROC_DATA, rank_data(layout, node, local));
  }
  return data;
}

}  // namespace

std::string make_namespace_name(const std::string& host, int attempt) {
  std::random_device source;
  return fmt::format("ddp.{}.{}.{:08x}{:08x}{:08x}{:08x}.{}", host.substr(0, 128), ::getpid(), source(), source(),
                     source(), source(), attempt);
}

JobNamespace::JobNamespace(PmixServer& server, const JobShape& shape) : server_(server), name_(shape.name_space) {
  const Layout layout{shape};
  const int first = layout.first_rank(layout.this_node());
  const int count = layout.ranks_on(layout.this_node());
  kvs::InfoList data = job_data(layout, server.directory());
  const pmix_proc_t job = kvs::make_proc(name_, PMIX_RANK_WILDCARD);
  kvs::require_pmix(pmix_server().register_nspace(job.nspace, count, data.data(), data.size(), nullptr, nullptr),
                    "registering the job with the PMIx server");
  for (int rank = first; rank < first + count; ++rank) {
    const pmix_proc_t proc = kvs::make_proc(name_, static_cast<pmix_rank_t>(rank));
    const pmix_status_t status =
        pmix_server().register_client(&proc, ::geteuid(), ::getegid(), &server.aborts(), nullptr, nullptr);
    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED) {
      pmix_server().deregister_nspace(job.nspace, nullptr, nullptr);
      kvs::require_pmix(status, fmt::format("registering rank {} with the PMIx server", rank));
    }
  }
}

JobNamespace::~JobNamespace() {
  if (server_.abandoned()) return;
  // First, because an answer refers to the library's own record of a call.
  server_.modex().answer_all(PMIX_ERR_JOB_ABORTED);
  const pmix_proc_t job = kvs::make_proc(name_, PMIX_RANK_WILDCARD);
  pmix_server().deregister_nspace(job.nspace, nullptr, nullptr);
}

EnvironmentMap JobNamespace::client_environment(int rank) const {
  const pmix_proc_t proc = kvs::make_proc(name_, static_cast<pmix_rank_t>(rank));
  EnvironmentArray array;
  kvs::require_pmix(pmix_server().setup_fork(&proc, array.receive()), "asking PMIx for a worker's environment");
  EnvironmentMap environment;
  for (char** line = array.lines(); line != nullptr && *line != nullptr; ++line) {
    const std::string_view text{*line};
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

}  // namespace ddp::launcher
