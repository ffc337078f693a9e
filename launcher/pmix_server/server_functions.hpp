// The functions of PMIx's server, of the library that is opened on demand: ddprun starts where there is none, too.
#pragma once

#include <pmix_server.h>

namespace ddp::launcher {

/// X(member, function). All are in PMIx 4.2 and in all since.
#define DDP_PMIX_SERVER_FUNCTIONS(X)                  \
  X(init, PMIx_server_init)                           \
  X(finalize, PMIx_server_finalize)                   \
  X(register_nspace, PMIx_server_register_nspace)     \
  X(deregister_nspace, PMIx_server_deregister_nspace) \
  X(register_client, PMIx_server_register_client)     \
  X(deregister_client, PMIx_server_deregister_client) \
  X(setup_fork, PMIx_server_setup_fork)               \
  X(dmodex_request, PMIx_server_dmodex_request)       \
  X(generate_regex, PMIx_generate_regex)              \
  X(generate_ppn, PMIx_generate_ppn)

struct PmixServerFunctions {
#define DDP_PMIX_SERVER_MEMBER(member, function) decltype(&(function)) member = nullptr;
  DDP_PMIX_SERVER_FUNCTIONS(DDP_PMIX_SERVER_MEMBER)
#undef DDP_PMIX_SERVER_MEMBER
};

/// Those of kvs::pmix(). Throws Error(unavailable) as that does, or because it lacks one.
const PmixServerFunctions& pmix_server();

}  // namespace ddp::launcher
