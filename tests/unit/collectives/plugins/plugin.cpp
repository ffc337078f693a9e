// A backend plugin that makes nothing, with the name and the interface version that the build gives it.
#include "collectives/backend.hpp"

namespace {

std::unique_ptr<ddp::collectives::Backend> create_nothing(const ddp::collectives::BackendConfig& /*unused*/) {
  return nullptr;
}

}  // namespace

extern "C" const ddp::collectives::BackendPlugin ddp_backend_plugin;
const ddp::collectives::BackendPlugin ddp_backend_plugin{
    .interface_version = ddp::collectives::kBackendInterfaceVersion + TEST_VERSION_OFFSET,
    .name = TEST_PLUGIN_NAME,
    .create = &create_nothing};
