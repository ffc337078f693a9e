#include "pmix_server/pmix_server.hpp"

#include <pmix_server.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "base/env_table.hpp"
#include "base/log.hpp"
#include "kvs/pmix_handles.hpp"
#include "kvs/pmix_info_list.hpp"

namespace ddp::launcher {
namespace {

// Called on the library's thread: they must neither block nor throw.

/// "Already done" is the one answer that all libraries from 4.2 to 6 understand; after plain success, those from 5.0.8
/// on wait for a callback.
pmix_status_t client_connected(const pmix_proc_t*, void*, pmix_op_cbfunc_t, void*) { return PMIX_OPERATION_SUCCEEDED; }
pmix_status_t client_finalized(const pmix_proc_t*, void*, pmix_op_cbfunc_t, void*) { return PMIX_OPERATION_SUCCEEDED; }

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

}  // namespace

PmixServer::PmixServer(const std::string& tmpdir) : directory_(tmpdir), aborts_(std::make_unique<AbortInbox>()) {
  forget_outer_pmix();
  // Clients are of this host and come over a Unix socket, which names their user. The other module, munge, spends
  // seconds on a daemon that is installed but not running. What the user has chosen stays.
  ::setenv("PMIX_MCA_psec", "native", 0);
  static ModuleBuffer buffer;  // static: zero throughout
  buffer.module.client_connected = client_connected;
  buffer.module.client_finalized = client_finalized;
  buffer.module.abort = client_aborts;
  kvs::InfoList infos;
  infos.text(PMIX_SERVER_TMPDIR, directory_.path())
      .text(PMIX_SYSTEM_TMPDIR, directory_.path())
      .text(PMIX_SERVER_NSPACE, fmt::format("ddprun.{}", ::getpid()))
      .rank(PMIX_SERVER_RANK, 0)
      .boolean(PMIX_SERVER_TOOL_SUPPORT, false);
  kvs::require_pmix(PMIx_server_init(&buffer.module, infos.data(), infos.size()), "starting the PMIx server");
}

PmixServer::~PmixServer() {
  if (abandoned_) {
    aborts_.release();  // leaked on purpose: the library's thread may still post
    return;
  }
  const pmix_status_t status = PMIx_server_finalize();
  if (status != PMIX_SUCCESS) {
    base::log(base::LogLevel::warning, "ending the PMIx server: {}", kvs::pmix_status_name(status));
  }
}

}  // namespace ddp::launcher
