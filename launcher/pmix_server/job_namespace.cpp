#include "pmix_server/job_namespace.hpp"

#include <pmix_server.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include <fmt/format.h>

#include "kvs/pmix_handles.hpp"
#include "kvs/pmix_info_list.hpp"

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

kvs::InfoList rank_data(const JobShape& shape, int rank) {
  const auto number = static_cast<std::uint32_t>(rank);
  const auto local = static_cast<std::uint16_t>(rank);
  kvs::InfoList data;
  data.rank(PMIX_RANK, number)  // first: libraries before 6.1.1 take the rank of the rest from it
      .number16(PMIX_LOCAL_RANK, local)
      .number16(PMIX_NODE_RANK, local)
      .number32(PMIX_NODEID, 0)
      .rank(PMIX_GLOBAL_RANK, number)
      .rank(PMIX_APP_RANK, number)
      .number32(PMIX_APPNUM, 0)
      .text(PMIX_HOSTNAME, shape.host);
  return data;
}

kvs::InfoList job_data(const JobShape& shape, const std::string& directory) {
  std::string peers;
  for (int rank = 0; rank < shape.num_ranks; ++rank) peers += fmt::format("{}{}", rank == 0 ? "" : ",", rank);
  const CString node_map = compress(PMIx_generate_regex, shape.host, "describing the hosts to PMIx");
  const CString proc_map = compress(PMIx_generate_ppn, peers, "describing the ranks to PMIx");
  const auto count = static_cast<std::uint32_t>(shape.num_ranks);

  kvs::InfoList data;
  data.number32(PMIX_JOB_SIZE, count)
      .number32(PMIX_UNIV_SIZE, count)
      .number32(PMIX_MAX_PROCS, count)
      .number32(PMIX_LOCAL_SIZE, count)
      .number32(PMIX_NODE_SIZE, count)
      .number32(PMIX_NUM_NODES, 1)
      .number32(PMIX_JOB_NUM_APPS, 1)
      .number32(PMIX_APP_SIZE, count)
      .rank(PMIX_LOCALLDR, 0)
      .rank(PMIX_APPLDR, 0)
      .text(PMIX_JOBID, shape.name_space)
      .text(PMIX_LOCAL_PEERS, peers)
      .regex(PMIX_NODE_MAP, node_map.get())
      .regex(PMIX_PROC_MAP, proc_map.get())
      .text(PMIX_ANL_MAP, fmt::format("(vector,(0,1,{}))", shape.num_ranks))
      .text(PMIX_TMPDIR, directory)
      .text(PMIX_NSDIR, directory)
      .boolean(PMIX_TDIR_RMCLEAN, true)
      .boolean(PMIX_SPAWNED, false);
  for (int rank = 0; rank < shape.num_ranks; ++rank) data.list(PMIX_PROC_DATA, rank_data(shape, rank));
  return data;
}

}  // namespace

std::string make_namespace_name(const std::string& host, int attempt) {
  std::random_device source;
  return fmt::format("ddp.{}.{}.{:08x}{:08x}.{}", host.substr(0, 128), ::getpid(), source(), source(), attempt);
}

JobNamespace::JobNamespace(PmixServer& server, const JobShape& shape) : server_(server), name_(shape.name_space) {
  kvs::InfoList data = job_data(shape, server.directory());
  const pmix_proc_t job = kvs::make_proc(name_, PMIX_RANK_WILDCARD);
  kvs::require_pmix(
      PMIx_server_register_nspace(job.nspace, shape.num_ranks, data.data(), data.size(), nullptr, nullptr),
      "registering the job with the PMIx server");
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    const pmix_proc_t proc = kvs::make_proc(name_, static_cast<pmix_rank_t>(rank));
    const pmix_status_t status =
        PMIx_server_register_client(&proc, ::geteuid(), ::getegid(), &server.aborts(), nullptr, nullptr);
    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED) {
      PMIx_server_deregister_nspace(job.nspace, nullptr, nullptr);
      kvs::require_pmix(status, fmt::format("registering rank {} with the PMIx server", rank));
    }
  }
}

JobNamespace::~JobNamespace() {
  if (server_.abandoned()) return;
  const pmix_proc_t job = kvs::make_proc(name_, PMIX_RANK_WILDCARD);
  PMIx_server_deregister_nspace(job.nspace, nullptr, nullptr);
}

EnvironmentMap JobNamespace::client_environment(int rank) const {
  const pmix_proc_t proc = kvs::make_proc(name_, static_cast<pmix_rank_t>(rank));
  EnvironmentArray array;
  kvs::require_pmix(PMIx_server_setup_fork(&proc, array.receive()), "asking PMIx for a worker's environment");
  EnvironmentMap environment;
  for (char** line = array.lines(); line != nullptr && *line != nullptr; ++line) {
    const std::string_view text{*line};
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

}  // namespace ddp::launcher
