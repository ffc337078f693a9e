// NVIDIA's management library, opened on demand: which GPUs this process may use, their names, MIG parts and NVLinks.
// Declared after NVIDIA's NVML API reference; builds need neither its headers nor the library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/devices.hpp>

namespace ddp::topology {

/// What is at the other end of an NVLink.
enum class LinkEnd {
  gpu,
  nvswitch,
  other,    ///< a processor (IBM POWER)
  unknown,  ///< the library is too old to say
};

/// An active NVLink of a GPU.
struct NvLink {
  LinkEnd end = LinkEnd::unknown;
  std::optional<PciAddress> remote;  ///< nothing if NVML does not tell it
  double mb_per_s = 0;               ///< in one direction, MB/s (10^6)
};

/// A GPU that NVML lets this process use.
struct NvmlGpu {
  int index = 0;  ///< NVML's number; numbers of GPUs that may not be used are left out
  PciAddress pci;
  std::string name;  ///< "NVIDIA H200"; empty if NVML does not tell it
  std::string uuid;  ///< "GPU-..."; empty if NVML does not tell it
  bool mig_enabled = false;
  std::vector<MigDevice> mig;  ///< parts that this process may use
  std::vector<NvLink> links;
};

/// Whether a GPU has joined the NVLink fabric of NVSwitches (nvmlGpuFabricState_t).
enum class FabricState : std::uint8_t { none, not_started, in_progress, completed };

/// What ails a GPU, as far as NVML tells it.
struct GpuHealth {
  std::string name;                        ///< UUID, else PCI address
  std::int64_t uncorrected_errors = 0;     ///< of its memory (ECC), since the driver was loaded
  bool remap_pending = false;              ///< a faulty row or page is replaced at the next reset
  bool remap_failed = false;               ///< there are no more spare rows
  std::uint64_t slowed_by = 0;             ///< nvmlClocksThrottleReasons: kSlowedBy* below
  bool persistent = true;                  ///< the driver stays loaded while nobody uses the GPU
  FabricState fabric = FabricState::none;  ///< none also where NVML does not tell it
  int fabric_error = 0;                    ///< nvmlReturn_t of a completed registration; 0: it succeeded
  std::string cluster = {};                ///< NVLink domain of several nodes, hexadecimal; empty: there is none
  std::int64_t clique = 0;                 ///< part of that
  friend bool operator==(const GpuHealth&, const GpuHealth&) = default;
};
inline constexpr std::uint64_t kSlowedByHardware = 0x08;  ///< heat, power brake or undervoltage
inline constexpr std::uint64_t kSlowedByHeat = 0x20;      ///< by the driver
inline constexpr std::uint64_t kSlowedByHeatOfHardware = 0x40;
inline constexpr std::uint64_t kSlowedByPowerBrake = 0x80;  ///< the power supply asks for it

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

/// The library, started. Move-only; shuts the library down when it goes away.
/// Thread-safety: const members from any thread.
class Nvml {
 public:
  /// Throws Error(unavailable): no such library (no NVIDIA driver), functions missing, or it does not start (the driver
  /// is not loaded, or of another version than the library).
  explicit Nvml(const std::string& library = kNvmlLibrary);
  Nvml(Nvml&&) noexcept;
  Nvml& operator=(Nvml&&) noexcept;
  ~Nvml();

  /// By NVML's number. What NVML does not tell about a GPU is left empty. Throws Error(system) when NVML cannot even
  /// count the GPUs.
  std::vector<NvmlGpu> gpus() const;

  /// Of the same GPUs. What NVML does not tell counts as healthy. Throws as gpus().
  std::vector<GpuHealth> health() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

/// What NVML lists, asked on a thread of its own, because calls into a driver in trouble hang. Nothing where NVML
/// cannot be asked or, with a warning, where it fails or does not answer by @p deadline.
std::optional<std::vector<NvmlGpu>> ask_nvml(Deadline deadline, const std::string& library = kNvmlLibrary);

/// The same of their health, without a word where it cannot be asked.
std::vector<GpuHealth> ask_gpu_health(Deadline deadline, const std::string& library = kNvmlLibrary);

}  // namespace ddp::topology
