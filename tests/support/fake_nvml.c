// A libnvidia-ml.so.1 for tests: GPUs, MIG parts and NVLinks as environment variables describe them. Signatures and
// numbers are those of NVIDIA's NVML API reference. With FAKE_NVML_OLD, functions that came later than driver 410 are
// missing.
//   FAKE_NVML_COUNT         GPUs, at 0000:10:00.0, 0000:20:00.0, ...; none if unset
//   FAKE_NVML_CGROUP        "5" or "1,3": GPUs whose device files the process may open. As under a device cgroup, the
//                           others are not counted, and those that are left are numbered from 0
//   FAKE_NVML_DENIED        number of a GPU that may not be used
//   FAKE_NVML_MIG           MIG parts of each GPU, at odd numbers; MIG is off if unset
//   FAKE_NVML_SWITCH_LINKS  links of each GPU to NVSwitches; of the last GPU one less is up
//   FAKE_NVML_PEER_LINKS    links of each GPU to each other GPU
//   FAKE_NVML_LINK_VERSION  what nvmlDeviceGetNvLinkVersion says
//   FAKE_NVML_CAPABILITY    major number of the compute capability
//   FAKE_NVML_ECC           uncorrected errors of GPU 0; the others have none
//   FAKE_NVML_REMAP         of GPU 0: 1 a row waits to be replaced, 2 that failed, 3 both
//   FAKE_NVML_SLOWDOWN      reasons why GPU 0 runs slowly, as a number
//   FAKE_NVML_PERSISTENCE   0 or 1; not told if unset
//   FAKE_NVML_FABRIC        state of GPU 0 in the NVLink fabric, 0 to 3; the others have 3; not told if unset
//   FAKE_NVML_FABRIC_ERROR  what its registration ended with
//   FAKE_NVML_CLUSTER       the NVLink domain's number, in the last byte of its UUID; none if unset
//   FAKE_NVML_INIT          what starting the library returns
//   FAKE_NVML_HANG          starting the library never returns
//   FAKE_NVML_LOG           file to which "start" and "stop" are appended
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNoPermission = 4, kNotFound = 6 };
enum { kMostGpus = 15, kMostParts = 7, kSwitchBus = 0xf8 };

struct Gpu {
  int gpu;
  int part;  // -1: the GPU itself
};
typedef struct Gpu* Device;

typedef struct {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
} PciInfo;

static struct Gpu gpus[kMostGpus];
static int started;

static int number(const char* variable) {
  const char* value = getenv(variable);
  return value == NULL ? -1 : atoi(value);
}
static int gpu_count(void) {
  const int count = number("FAKE_NVML_COUNT");
  return count < 0 ? 0 : count;
}
/// The GPU with NVML's number @p index; -1 if there is none.
static int gpu_at(unsigned index) {
  const char* list = getenv("FAKE_NVML_CGROUP");
  if (list == NULL) return (int)index < gpu_count() ? (int)index : -1;
  for (unsigned i = 0; list != NULL; ++i) {
    if (i == index) return atoi(list);
    list = strchr(list, ',');
    if (list != NULL) ++list;
  }
  return -1;
}
static void note(const char* word) {
  const char* name = getenv("FAKE_NVML_LOG");
  FILE* file = name == NULL ? NULL : fopen(name, "a");
  if (file == NULL) return;
  fprintf(file, "%s\n", word);
  fclose(file);
}
static int start(void) {
  while (getenv("FAKE_NVML_HANG") != NULL) sleep(3600);
  const int code = number("FAKE_NVML_INIT");
  if (code > 0) return code;
  started = 1;
  note("start");
  return kSuccess;
}
static void fill(PciInfo* info, unsigned bus) {
  memset(info, 0, sizeof *info);
  info->bus = bus;
  snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", 0u, bus, 0u);
}

int nvmlInit_v2(void) { return start(); }
int nvmlShutdown(void) {
  note("stop");
  started = 0;
  return kSuccess;
}
const char* nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Some Error"; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  if (!started) return 1;
  *count = 0;
  while (gpu_at(*count) >= 0) ++*count;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  const int gpu = started ? gpu_at(index) : -1;
  if (gpu < 0) return kInvalidArgument;
  if (gpu == number("FAKE_NVML_DENIED")) return kNoPermission;
  gpus[gpu].gpu = gpu;
  gpus[gpu].part = -1;
  *device = &gpus[gpu];
  return kSuccess;
}
int nvmlDeviceGetPciInfo_v3(Device device, PciInfo* info) {
  fill(info, 0x10u * (unsigned)(device->gpu + 1));
  return kSuccess;
}
int nvmlDeviceGetUUID(Device device, char* text, unsigned size) {
  if (device->part >= 0) {
    snprintf(text, size, "MIG-%d-%d", device->gpu, device->part);
  } else {
    snprintf(text, size, "GPU-%d", device->gpu);
  }
  return kSuccess;
}
int nvmlDeviceGetName(Device device, char* text, unsigned size) {
  snprintf(text, size, device->part >= 0 ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200");
  return kSuccess;
}

static int peer_links(void) {
  const int each = number("FAKE_NVML_PEER_LINKS");
  return each > 0 ? each * (gpu_count() - 1) : 0;
}
int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned* active) {
  const int switched = number("FAKE_NVML_SWITCH_LINKS");
  const int count = switched > 0 ? switched : peer_links();
  if (count == 0) return kNotSupported;
  if ((int)link >= count) return kInvalidArgument;
  *active = !(switched > 0 && device->gpu == gpu_count() - 1 && link == 0);
  return kSuccess;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, PciInfo* info) {
  if (number("FAKE_NVML_SWITCH_LINKS") > 0) {
    fill(info, kSwitchBus);
    return kSuccess;
  }
  const int other = (int)link / number("FAKE_NVML_PEER_LINKS");  // position among the others
  fill(info, 0x10u * (unsigned)(other + (other >= device->gpu) + 1));
  return kSuccess;
}
int nvmlDeviceGetNvLinkVersion(Device device, unsigned link, unsigned* version) {
  (void)device;
  (void)link;
  *version = (unsigned)number("FAKE_NVML_LINK_VERSION");
  return kSuccess;
}
int nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
  (void)device;
  *major = number("FAKE_NVML_CAPABILITY");
  *minor = 0;
  return *major < 0 ? kNotSupported : kSuccess;
}

static int of_first(Device device, const char* variable) {
  const int value = number(variable);
  return device->gpu == 0 && value > 0 ? value : 0;
}
int nvmlDeviceGetTotalEccErrors(Device device, unsigned type, unsigned counter, unsigned long long* errors) {
  if (type != 1 || counter != 0) return kInvalidArgument;
  *errors = (unsigned long long)of_first(device, "FAKE_NVML_ECC");
  return number("FAKE_NVML_ECC") < 0 ? kNotSupported : kSuccess;
}
int nvmlDeviceGetRetiredPagesPendingStatus(Device device, unsigned* pending) {
  *pending = (unsigned)of_first(device, "FAKE_NVML_REMAP") & 1u;
  return kSuccess;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* reasons) {
  *reasons = (unsigned long long)of_first(device, "FAKE_NVML_SLOWDOWN");
  return kSuccess;
}
int nvmlDeviceGetPersistenceMode(Device device, unsigned* mode) {
  (void)device;
  *mode = number("FAKE_NVML_PERSISTENCE") == 1;
  return number("FAKE_NVML_PERSISTENCE") < 0 ? kNotSupported : kSuccess;
}

#ifndef FAKE_NVML_OLD
typedef struct {
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique_id;
  unsigned char state;
} FabricInfo;

int nvmlDeviceGetGpuFabricInfo(Device device, FabricInfo* info) {
  const int state = number("FAKE_NVML_FABRIC");
  if (state < 0) return kNotSupported;
  memset(info, 0, sizeof *info);
  info->state = (unsigned char)(device->gpu == 0 ? state : 3);
  info->status = of_first(device, "FAKE_NVML_FABRIC_ERROR");
  const int cluster = number("FAKE_NVML_CLUSTER");
  if (cluster > 0) {
    info->cluster_uuid[15] = (unsigned char)cluster;
    info->clique_id = 7;
  }
  return kSuccess;
}
int nvmlDeviceGetRemappedRows(Device device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  const unsigned state = (unsigned)of_first(device, "FAKE_NVML_REMAP");
  *corrected = *uncorrected = state != 0;
  *pending = state & 1u;
  *failed = (state >> 1u) & 1u;
  return kSuccess;
}
static struct Gpu parts[kMostGpus][kMostParts];

int nvmlInitWithFlags(unsigned flags) { return flags == 1 ? start() : kInvalidArgument; }
int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned* type) {
  (void)device;
  (void)link;
  *type = number("FAKE_NVML_SWITCH_LINKS") > 0 ? 2 : 0;
  return kSuccess;
}
int nvmlDeviceGetMigMode(Device device, unsigned* current, unsigned* pending) {
  (void)device;
  *current = *pending = number("FAKE_NVML_MIG") >= 0;
  return kSuccess;
}
int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned* count) {
  (void)device;
  *count = kMostParts;
  return kSuccess;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device* part) {
  if (index % 2 == 0 || (int)index / 2 >= number("FAKE_NVML_MIG") || index >= kMostParts) return kNotFound;
  *part = &parts[device->gpu][index];
  (*part)->gpu = device->gpu;
  (*part)->part = (int)index;
  return kSuccess;
}
#endif
