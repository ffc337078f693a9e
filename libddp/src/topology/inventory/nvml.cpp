#include "topology/inventory/nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/library_thread.hpp"
#include "base/log.hpp"

namespace ddp::topology {
// Named, because g++ 13 fails with an internal error in a unity build if a class outside the file's unnamed namespace
// has pointers to functions that take types in it.
namespace nvml_api {

// From the NVML API reference (nvml.h), without the prefix.
using Return = int;
using Device = struct nvmlDevice_st*;
constexpr Return kSuccess = 0;
constexpr Return kInvalidArgument = 2;
constexpr Return kNotSupported = 3;
constexpr unsigned kInitNoGpus = 1;   // NVML_INIT_FLAG_NO_GPUS: do not fail without GPUs
constexpr unsigned kEnabled = 1;      // NVML_FEATURE_ENABLED and NVML_DEVICE_MIG_ENABLE
constexpr unsigned kUncorrected = 1;  // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr unsigned kVolatile = 0;     // NVML_VOLATILE_ECC: since the driver was loaded
constexpr unsigned kTextBytes = 96;   // NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE
// NVML_NVLINK_MAX_LINKS is 18 in CUDA 12 and 36 in CUDA 13; GPUs reject numbers of links that they do not have.
constexpr unsigned kMostLinks = 36;

// nvmlIntNvLinkDeviceType_t
constexpr unsigned kRemoteGpu = 0;
constexpr unsigned kRemoteNpu = 1;
constexpr unsigned kRemoteSwitch = 2;

/// nvmlPciInfo_t as nvmlDeviceGetPciInfo_v3 and nvmlDeviceGetNvLinkRemotePciInfo_v2 fill it in.
struct PciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  std::array<char, 32> bus_id;
};
static_assert(sizeof(PciInfo) == 68);

/// nvmlGpuFabricInfo_t as nvmlDeviceGetGpuFabricInfo fills it in.
struct FabricInfo {
  std::array<unsigned char, 16> cluster_uuid;
  Return status;
  unsigned clique_id;
  unsigned char state;
};
static_assert(sizeof(FabricInfo) == 28);
constexpr unsigned char kFabricCompleted = 3;  // NVML_GPU_FABRIC_STATE_COMPLETED, the largest

}  // namespace nvml_api

using namespace nvml_api;

namespace {

// nvmlDeviceGetNvLinkVersion gives numbers of nvmlNvlinkVersion_t, not versions: 1 is NVLink 1.0, 2 and 3 are 2.0 and
// 2.2 (V100), 4 and 5 are 3.0 and 3.1 (A100), 6 is 4.0 (H100), 7 is 5.0 (B200). Some drivers also report 7 for H100;
// the compute capability corrects that.
constexpr unsigned kVersion2 = 2;
constexpr unsigned kVersion5 = 7;
constexpr int kBlackwell = 10;  // major number of the compute capability

/// Bandwidth of one link in one direction, MB/s (NVIDIA's architecture white papers: links of P100, V100 to H100,
/// B200).
double link_bandwidth(unsigned version, int compute_capability) {
  if (version < kVersion2) return 20000;
  if (version < kVersion5 || (compute_capability > 0 && compute_capability < kBlackwell)) return 25000;
  return 50000;
}

std::string printable(const std::array<char, kTextBytes>& buffer) {
  const std::string_view text{buffer.data(), buffer.size()};
  return std::string(text.substr(0, text.find('\0')));
}

std::optional<PciAddress> address_of(const PciInfo& info) {
  constexpr unsigned kLargestBus = 0xff;
  constexpr unsigned kLargestDevice = 31;
  // An NVSwitch that a virtual machine hides has an empty or meaningless address.
  if (info.bus_id[0] == '\0' || info.bus > kLargestBus || info.device > kLargestDevice) return std::nullopt;
  return PciAddress{info.domain, static_cast<std::uint8_t>(info.bus), static_cast<std::uint8_t>(info.device), 0};
}

[[noreturn]] void fail(std::string cause, std::string native, std::string hint) {
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "opening NVIDIA's management library (NVML)",
               .cause = std::move(cause),
               .native = std::move(native),
               .hint = std::move(hint)}};
}

}  // namespace

/// NVML's functions; old libraries may lack all but the first four.
struct Nvml::Library {
  void* handle = nullptr;
  bool started = false;

  Return (*shutdown)() = nullptr;
  Return (*get_count)(unsigned*) = nullptr;
  Return (*get_handle)(unsigned, Device*) = nullptr;
  Return (*get_pci_info)(Device, PciInfo*) = nullptr;

  const char* (*error_string)(Return) = nullptr;
  Return (*get_uuid)(Device, char*, unsigned) = nullptr;
  Return (*get_name)(Device, char*, unsigned) = nullptr;
  Return (*get_compute_capability)(Device, int*, int*) = nullptr;
  Return (*get_mig_mode)(Device, unsigned*, unsigned*) = nullptr;
  Return (*get_max_mig_count)(Device, unsigned*) = nullptr;
  Return (*get_mig_handle)(Device, unsigned, Device*) = nullptr;
  Return (*get_link_state)(Device, unsigned, unsigned*) = nullptr;
  Return (*get_link_version)(Device, unsigned, unsigned*) = nullptr;
  Return (*get_link_remote_pci)(Device, unsigned, PciInfo*) = nullptr;
  Return (*get_link_remote_type)(Device, unsigned, unsigned*) = nullptr;

  Return (*get_ecc_errors)(Device, unsigned, unsigned, unsigned long long*) = nullptr;
  Return (*get_remapped_rows)(Device, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  Return (*get_retired_pending)(Device, unsigned*) = nullptr;
  Return (*get_slowdown)(Device, unsigned long long*) = nullptr;
  Return (*get_persistence)(Device, unsigned*) = nullptr;
  Return (*get_fabric)(Device, FabricInfo*) = nullptr;

  Library() = default;
  Library& operator=(Library&&) = delete;
  ~Library() {
    if (started) shutdown();
    if (handle != nullptr) dlclose(handle);
  }

  template <class Function>
  bool find(Function*& function, const char* symbol) {
    function = reinterpret_cast<Function*>(dlsym(handle, symbol));
    return function != nullptr;
  }
  template <class Function>
  void require(Function*& function, const char* symbol) {
    if (!find(function, symbol)) fail(fmt::format("the library has no {}", symbol), {}, "it needs driver 410 or newer");
  }

  /// Calls a function that may be missing; false if it is missing or fails.
  template <class... Parameters, class... Arguments>
  static bool ask(Return (*function)(Parameters...), Arguments... arguments) {
    return function != nullptr && function(arguments...) == kSuccess;
  }

  std::string native(Return code) const {
    return fmt::format("{} ({})", error_string == nullptr ? "nvmlReturn_t" : error_string(code), code);
  }

  void load(const std::string& file);
  void start();
  std::string text_of(Return (*function)(Device, char*, unsigned), Device device) const;
  std::vector<MigDevice> mig_of(Device device) const;
  std::vector<NvLink> links_of(Device device) const;
  GpuHealth health_of(Device device) const;
  unsigned count() const;
  /// Calls @p use with number, handle and address of each GPU that this process may use.
  template <class Use>
  void each(Use use) const;
};

void Nvml::Library::load(const std::string& file) {
  handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(dlerror(), {}, "it comes with the NVIDIA driver; without NVIDIA GPUs it is not needed");
  require(shutdown, "nvmlShutdown");
  require(get_count, "nvmlDeviceGetCount_v2");
  require(get_handle, "nvmlDeviceGetHandleByIndex_v2");
  require(get_pci_info, "nvmlDeviceGetPciInfo_v3");
  find(error_string, "nvmlErrorString");
  find(get_uuid, "nvmlDeviceGetUUID");
  find(get_name, "nvmlDeviceGetName");
  find(get_compute_capability, "nvmlDeviceGetCudaComputeCapability");
  find(get_mig_mode, "nvmlDeviceGetMigMode");
  find(get_max_mig_count, "nvmlDeviceGetMaxMigDeviceCount");
  find(get_mig_handle, "nvmlDeviceGetMigDeviceHandleByIndex");
  find(get_link_state, "nvmlDeviceGetNvLinkState");
  find(get_link_version, "nvmlDeviceGetNvLinkVersion");
  find(get_link_remote_pci, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  find(get_link_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
  find(get_ecc_errors, "nvmlDeviceGetTotalEccErrors");
  find(get_remapped_rows, "nvmlDeviceGetRemappedRows");                 // from A100 on
  find(get_retired_pending, "nvmlDeviceGetRetiredPagesPendingStatus");  // before A100
  find(get_slowdown, "nvmlDeviceGetCurrentClocksThrottleReasons");      // the newer name is an alias
  find(get_persistence, "nvmlDeviceGetPersistenceMode");
  find(get_fabric, "nvmlDeviceGetGpuFabricInfo");  // from H100 on
}

void Nvml::Library::start() {
  Return (*init_with_flags)(unsigned) = nullptr;
  Return (*init)() = nullptr;
  Return code = kSuccess;
  if (find(init_with_flags, "nvmlInitWithFlags")) {
    code = init_with_flags(kInitNoGpus);
  } else {
    require(init, "nvmlInit_v2");
    code = init();
  }
  if (code != kSuccess) fail("it does not start", native(code), "does nvidia-smi work on this node?");
  started = true;
}

std::string Nvml::Library::text_of(Return (*function)(Device, char*, unsigned), Device device) const {
  std::array<char, kTextBytes> buffer{};
  return ask(function, device, buffer.data(), kTextBytes) ? printable(buffer) : "";
}

std::vector<MigDevice> Nvml::Library::mig_of(Device device) const {
  std::vector<MigDevice> parts;
  unsigned count = 0;
  if (!ask(get_max_mig_count, device, &count)) return parts;
  for (unsigned i = 0; i < count; ++i) {
    Device part = nullptr;  // numbers have gaps, and parts of other jobs are invisible
    if (!ask(get_mig_handle, device, i, &part)) continue;
    std::string name = text_of(get_name, part);  // "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    constexpr std::string_view kBefore = "MIG ";
    if (const auto before = name.rfind(kBefore); before != std::string::npos) name.erase(0, before + kBefore.size());
    parts.push_back({.uuid = text_of(get_uuid, part), .name = std::move(name)});
  }
  return parts;
}

std::vector<NvLink> Nvml::Library::links_of(Device device) const {
  std::vector<NvLink> links;
  int major = 0;
  int minor = 0;
  if (!ask(get_compute_capability, device, &major, &minor)) major = 0;
  for (unsigned number = 0; get_link_state != nullptr && number < kMostLinks; ++number) {
    unsigned active = 0;
    const Return code = get_link_state(device, number, &active);
    if (code == kInvalidArgument || code == kNotSupported) break;  // there are no more links
    if (code != kSuccess || active != kEnabled) continue;
    unsigned version = 0;
    if (!ask(get_link_version, device, number, &version)) version = 0;
    NvLink link;
    link.mb_per_s = link_bandwidth(version, major);
    PciInfo remote{};
    if (ask(get_link_remote_pci, device, number, &remote)) link.remote = address_of(remote);
    unsigned type = 0;
    if (ask(get_link_remote_type, device, number, &type)) {
      link.end = type == kRemoteGpu      ? LinkEnd::gpu
                 : type == kRemoteSwitch ? LinkEnd::nvswitch
                 : type == kRemoteNpu    ? LinkEnd::other
                                         : LinkEnd::unknown;
    }
    links.push_back(link);
  }
  return links;
}

Nvml::Nvml(const std::string& library) : library_(std::make_unique<Library>()) {
  library_->load(library);
  library_->start();
}
Nvml::Nvml(Nvml&&) noexcept = default;
Nvml& Nvml::operator=(Nvml&&) noexcept = default;
Nvml::~Nvml() = default;

unsigned Nvml::Library::count() const {
  unsigned count = 0;
  if (const Return code = get_count(&count); code != kSuccess) {
    throw Error{{.code = ErrorCode::system,
                 .attempted = "counting the GPUs",
                 .cause = "NVML cannot tell",
                 .native = native(code),
                 .hint = "does nvidia-smi work on this node?"}};
  }
  return count;
}

template <class Use>
void Nvml::Library::each(Use use) const {
  for (unsigned i = 0, all = count(); i < all; ++i) {
    Device device = nullptr;
    PciInfo info{};
    Return code = get_handle(i, &device);
    if (code == kSuccess) code = get_pci_info(device, &info);
    if (const auto address = code == kSuccess ? address_of(info) : std::nullopt) {
      use(static_cast<int>(i), device, *address);
    } else {
      base::log(base::LogLevel::debug, "NVML does not give access to GPU {}: {}", i, native(code));
    }
  }
}

GpuHealth Nvml::Library::health_of(Device device) const {
  GpuHealth health;
  unsigned long long errors = 0;
  if (ask(get_ecc_errors, device, kUncorrected, kVolatile, &errors)) {
    health.uncorrected_errors = static_cast<std::int64_t>(errors);
  }
  unsigned corrected = 0;
  unsigned uncorrected = 0;
  unsigned pending = 0;
  unsigned failed = 0;
  if (ask(get_remapped_rows, device, &corrected, &uncorrected, &pending, &failed)) {
    health.remap_pending = pending != 0;
    health.remap_failed = failed != 0;
  } else if (ask(get_retired_pending, device, &pending)) {
    health.remap_pending = pending != 0;
  }
  unsigned long long reasons = 0;
  if (ask(get_slowdown, device, &reasons)) health.slowed_by = reasons;
  unsigned persistence = 0;
  if (ask(get_persistence, device, &persistence)) health.persistent = persistence == kEnabled;
  FabricInfo fabric{};
  if (ask(get_fabric, device, &fabric) && fabric.state <= kFabricCompleted) {
    health.fabric = static_cast<FabricState>(fabric.state);
    if (health.fabric == FabricState::completed) health.fabric_error = fabric.status;
    const auto& uuid = fabric.cluster_uuid;
    if (std::any_of(uuid.begin(), uuid.end(), [](unsigned char byte) { return byte != 0; })) {
      health.cluster = fmt::format("{:02x}", fmt::join(uuid, ""));
      health.clique = fabric.clique_id;
    }
  }
  return health;
}

std::vector<NvmlGpu> Nvml::gpus() const {
  const Library& nvml = *library_;
  std::vector<NvmlGpu> gpus;
  nvml.each([&](int number, Device device, const PciAddress& address) {
    NvmlGpu gpu;
    gpu.index = number;
    gpu.pci = address;
    gpu.name = nvml.text_of(nvml.get_name, device);
    gpu.uuid = nvml.text_of(nvml.get_uuid, device);
    unsigned mode = 0;
    unsigned pending = 0;
    gpu.mig_enabled = Library::ask(nvml.get_mig_mode, device, &mode, &pending) && mode == kEnabled;
    if (gpu.mig_enabled) gpu.mig = nvml.mig_of(device);
    gpu.links = nvml.links_of(device);
    gpus.push_back(std::move(gpu));
  });
  return gpus;
}

std::vector<GpuHealth> Nvml::health() const {
  std::vector<GpuHealth> all;
  library_->each([&](int, Device device, const PciAddress& address) {
    GpuHealth health = library_->health_of(device);
    health.name = library_->text_of(library_->get_uuid, device);
    if (health.name.empty()) health.name = address.to_string();
    all.push_back(std::move(health));
  });
  return all;
}

std::optional<std::vector<NvmlGpu>> ask_nvml(Deadline deadline, const std::string& library) {
  try {
    auto listed = base::abandonable_call([library] { return Nvml{library}.gpus(); }, deadline);
    if (!listed) {
      base::log(base::LogLevel::warning,
                "NVIDIA's management library (NVML) does not answer, so GPUs are described without it; does nvidia-smi "
                "hang on this node, too?");
    }
    return listed;
  } catch (const Error& error) {
    const bool expected = error.code() == ErrorCode::unavailable;  // there is no driver
    base::log(expected ? base::LogLevel::debug : base::LogLevel::warning, "{}", error.what());
    return std::nullopt;
  }
}

std::vector<GpuHealth> ask_gpu_health(Deadline deadline, const std::string& library) {
  try {
    return base::abandonable_call([library] { return Nvml{library}.health(); }, deadline)
        .value_or(std::vector<GpuHealth>{});
  } catch (const Error& error) {
    base::log(base::LogLevel::debug, "{}", error.what());
    return {};
  }
}

}  // namespace ddp::topology
