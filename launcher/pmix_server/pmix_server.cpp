#include "pmix_server/pmix_server.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <pmix_server.h>

#include "base/env_table.hpp"
#include "base/log.hpp"
#include "kvs/pmix_library.hpp"
#include "kvs/store_contract.hpp"
#include "pmix_server/server_functions.hpp"

namespace ddp::launcher {
namespace {

// Called on the library's thread: they must neither block nor throw.

/// "Already done" is the one answer that all libraries from 4.2 to 6 understand; after plain success, those from 5.0.8
/// on wait for a callback.
pmix_status_t client_connected(const pmix_proc_t*, void*, pmix_op_cbfunc_t, void*) { return PMIX_OPERATION_SUCCEEDED; }
pmix_status_t client_finalized(const pmix_proc_t*, void*, pmix_op_cbfunc_t, void*) { return PMIX_OPERATION_SUCCEEDED; }

/// Ranks in ascending order, empty for all of the job; nothing when several jobs take part, or a group of ranks that
/// means something else on each node.
std::optional<std::vector<int>> ranks_of(std::span<const pmix_proc_t> procs) {
  std::vector<int> ranks;
  bool all = false;
  for (const pmix_proc_t& proc : procs) {
    if (std::string_view{proc.nspace} != procs.front().nspace) return std::nullopt;
    if (proc.rank == PMIX_RANK_WILDCARD) {
      all = true;
    } else if (proc.rank >= PMIX_RANK_VALID) {
      return std::nullopt;
    } else {
      ranks.push_back(static_cast<int>(proc.rank));
    }
  }
  if (all) return std::vector<int>{};
  if (ranks.empty()) return std::nullopt;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

pmix_status_t client_aborts(const pmix_proc_t* proc, void* server_object, int status, const char message[],
                            pmix_proc_t[], std::size_t, pmix_op_cbfunc_t done, void* done_data) {
  if (server_object == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  try {
    static_cast<AbortInbox*>(server_object)
        ->post({.rank = static_cast<int>(proc->rank), .status = status, .message = message != nullptr ? message : ""});
  } catch (...) {
    return PMIX_ERR_NOMEM;
  }
  if (done != nullptr) done(PMIX_SUCCESS, done_data);  // lets the client go on
  return PMIX_SUCCESS;
}

/// Where the two calls below post to. A global because the library hands them neither an object of ours nor anything
/// from which one could be found; it has one server per process itself. Null while there is none.
std::atomic<ModexInbox*> inbox_of_the_server{nullptr};

/// PMIX_TIMEOUT of a call, in seconds; 0 and nothing mean no limit.
std::optional<Deadline> limit_of(const pmix_info_t infos[], std::size_t num_infos) {
  for (std::size_t i = 0; i < num_infos; ++i) {
    if (std::strncmp(infos[i].key, PMIX_TIMEOUT, PMIX_MAX_KEYLEN) != 0) continue;
    const pmix_value_t& value = infos[i].value;
    const int seconds = value.type == PMIX_UINT32 ? static_cast<int>(value.data.uint32)
                        : value.type == PMIX_INT  ? value.data.integer
                                                  : 0;
    if (seconds > 0) return Deadline::after(std::chrono::seconds(seconds));
  }
  return std::nullopt;
}

/// The text of @p key; empty: there is none.
std::string text_of(const pmix_info_t infos[], std::size_t num_infos, const char* key) {
  for (std::size_t i = 0; i < num_infos; ++i) {
    const pmix_value_t& value = infos[i].value;
    if (std::strncmp(infos[i].key, key, PMIX_MAX_KEYLEN) == 0 && value.type == PMIX_STRING &&
        value.data.string != nullptr)
      return value.data.string;
  }
  return {};
}

/// All of the job's ranks that are on this host and take part have entered. Called once per fence that spans nodes;
/// @p data belongs to the library.
pmix_status_t fence_spans_nodes(const pmix_proc_t procs[], std::size_t num_procs, const pmix_info_t infos[],
                                std::size_t num_infos, char* data, std::size_t size, pmix_modex_cbfunc_t done,
                                void* done_data) {
  ModexInbox* const inbox = inbox_of_the_server;
  if (inbox == nullptr) return PMIX_ERR_NOT_SUPPORTED;
  try {
    auto ranks = ranks_of({procs, num_procs});
    if (!ranks) return PMIX_ERR_NOT_SUPPORTED;
    inbox->post_fence(std::move(*ranks), data == nullptr ? std::span<const char>{} : std::span<const char>{data, size},
                      limit_of(infos, num_infos), done, done_data);
  } catch (...) {
    return PMIX_ERR_NOMEM;
  }
  return PMIX_SUCCESS;
}

/// A local rank asks for what a rank of another node has put.
pmix_status_t asks_another_node(const pmix_proc_t* proc, const pmix_info_t infos[], std::size_t num_infos,
                                pmix_modex_cbfunc_t done, void* done_data) {
  ModexInbox* const inbox = inbox_of_the_server;
  if (inbox == nullptr || proc->rank >= PMIX_RANK_VALID) return PMIX_ERR_NOT_SUPPORTED;
  try {
    std::string arrival = text_of(infos, num_infos, kvs::kArrivalOf);
    if (!arrival.empty()) kvs::check_key(arrival);  // the coordinator would refuse this node's message
    inbox->post_call(static_cast<int>(proc->rank), limit_of(infos, num_infos), done, done_data, std::move(arrival));
  } catch (...) {
    return PMIX_ERR_NOMEM;
  }
  return PMIX_SUCCESS;
}

/// The library copies the whole structure of the version that it was built as, and newer ones are longer than the one
/// in our headers. What we do not set must read as null.
union ModuleBuffer {
  pmix_server_module_t module;
  std::array<std::byte, 4096> room;
};
static_assert(sizeof(pmix_server_module_t) <= 1024, "the buffer must leave room for newer versions");

void forget_outer_pmix() {
  const base::Environment environment = base::Environment::process();
  for (const auto& [name, value] : environment.variables()) {
    if (name.starts_with("PMIX_") && !name.starts_with("PMIX_MCA_")) ::unsetenv(name.c_str());
  }
}

/// As a file and not as an object of hwloc's, because the library's hwloc may be another one than ours.
void give_topology(const std::string& path, const std::string& xml) {
  std::ofstream file{path};
  file << xml;
  if (file.close(); file) ::setenv("PMIX_MCA_pmix_hwloc_topo_file", path.c_str(), 0);
}

}  // namespace

PmixServer::PmixServer(const std::string& tmpdir, const std::string& topology_xml)
    : directory_(tmpdir),
      guard_(std::make_unique<AcceptGuard>()),
      aborts_(std::make_unique<AbortInbox>()),
      modex_(std::make_unique<ModexInbox>()) {
  pmix_server();  // throws where there is no library, before lists are built that only it can free
  forget_outer_pmix();
  // Clients come over TCP to 127.0.0.1, libpmix 4's only transport, and its "native" believes the user that they name.
  // The guard keeps other users' and silent processes out, and the namespace: it has 128 random bits, which only ranks
  // learn. The other module, munge, asks munged for the user, but spends seconds on one that is installed and not
  // running, and ranks whose libpmix lacks it cannot connect. What the user has chosen stays: PMIX_MCA_psec=munge.
  ::setenv("PMIX_MCA_psec", "native", 0);
  if (!topology_xml.empty()) give_topology(directory_.path() + "/topology.xml", topology_xml);
  static ModuleBuffer buffer;  // static: zero throughout
  buffer.module.client_connected = client_connected;
  buffer.module.client_finalized = client_finalized;
  buffer.module.abort = client_aborts;
  buffer.module.fence_nb = fence_spans_nodes;
  buffer.module.direct_modex = asks_another_node;
  kvs::InfoList infos;
  infos.text(PMIX_SERVER_TMPDIR, directory_.path())
      .text(PMIX_SYSTEM_TMPDIR, directory_.path())
      .text(PMIX_SERVER_NSPACE, fmt::format("ddprun.{}", ::getpid()))
      .rank(PMIX_SERVER_RANK, 0)
      .boolean(PMIX_SERVER_TOOL_SUPPORT, false)
      .boolean(PMIX_SERVER_REMOTE_CONNECTIONS, false);
  kvs::require_pmix(pmix_server().init(&buffer.module, infos.data(), infos.size()), "starting the PMIx server");
  inbox_of_the_server = modex_.get();
}

PmixServer::~PmixServer() {
  if (abandoned_) {
    aborts_.release();  // leaked on purpose, all: the library's threads may still post, and accept
    modex_.release();
    guard_.release();
    return;
  }
  modex_->answer_all(PMIX_ERR_JOB_ABORTED);
  const pmix_status_t status = pmix_server().finalize();
  if (status != PMIX_SUCCESS) {
    base::log(base::LogLevel::warning, "ending the PMIx server: {}", kvs::pmix_status_name(status));
  }
  inbox_of_the_server = nullptr;
}

void AbortInbox::post(AbortMessage message) {
  const std::lock_guard lock{mutex_};
  messages_.push_back(std::move(message));
  event_.ring();
}

std::vector<AbortMessage> AbortInbox::take() {
  const std::lock_guard lock{mutex_};
  event_.clear();
  return std::exchange(messages_, {});
}

namespace {

using Answered = std::shared_ptr<std::atomic<bool>>;

// Nobody has it: there is nothing to forget about a rank of it.
constexpr auto kNoNamespace = "ddprun.pulse";

/// On the library's thread.
void answer(pmix_status_t, void* question) {
  const std::unique_ptr<Answered> answered(static_cast<Answered*>(question));
  **answered = true;
}

}  // namespace

void ServerPulse::ask() {
  if (!*answered_) return;
  auto question = std::make_unique<Answered>(answered_);
  *answered_ = false;
  asked_at_ = Deadline::Clock::now();
  const pmix_proc_t nobody = kvs::make_proc(kNoNamespace, 0);
  pmix_server().deregister_client(&nobody, answer, question.release());
}

std::optional<Deadline::Clock::time_point> ServerPulse::silent_since() const {
  return *answered_ ? std::nullopt : std::optional{asked_at_};
}

}  // namespace ddp::launcher
