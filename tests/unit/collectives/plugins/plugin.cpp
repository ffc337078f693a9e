// A backend plugin that makes nothing, with the name and the interface version that the build gives it.
#include <ddp/backend.hpp>

namespace {

std::unique_ptr<ddp::Backend> create_nothing(const ddp::BackendConfig& /*unused*/) { return nullptr; }

}  // namespace

extern "C" const ddp::BackendPlugin ddp_backend_plugin;
const ddp::BackendPlugin ddp_backend_plugin{
    .version = ddp::kBackendVersion + TEST_VERSION_OFFSET, .name = TEST_PLUGIN_NAME, .create = &create_nothing};
