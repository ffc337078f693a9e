// What libddp_nccl.so exports.
#include "collectives/nccl/nccl_backend.hpp"

extern "C" const ddp::BackendPlugin ddp_backend_plugin;
const ddp::BackendPlugin ddp_backend_plugin{
    .version = ddp::kBackendVersion, .name = "nccl", .create = &ddp::collectives::nccl::create};
