#include "collectives/group_backends.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/backend_file.hpp"
#include "base/env_table.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "collectives/backend.hpp"

namespace ddp::collectives {
namespace {

// Bounds a reason sent to other ranks, which print those of several ranks.
constexpr std::size_t kLongestReason = 600;

struct VersionedAddresses {
  std::string version{};  ///< of libddp; another version may encode the rest differently
  Bytes addresses{};      ///< BackendAddresses
};
constexpr auto description(const VersionedAddresses*) {
  return base::describe({"addresses of a rank's backends"},
                        base::fields<&VersionedAddresses::version, &VersionedAddresses::addresses>());
}

/// Lists each distinct reason once, with its ranks.
std::string list(const std::map<std::string, std::vector<int>>& reasons) {
  std::string text;
  for (const auto& [reason, ranks] : reasons) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", format_ranks(ranks), reason);
  }
  return text;
}

}  // namespace

BackendChoice BackendChoice::of(std::string_view word) {
  const auto names = base::backends_of(word);
  if (!names) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = fmt::format("loading the communication backend '{}'", word),
                 .cause = "that is not the name of a backend",
                 .hint = fmt::format("give {}", base::kBackendRule)}};
  }
  const Cuda cuda = names->cuda.empty() ? Cuda::none : names->cuda_if_possible ? Cuda::if_possible : Cuda::required;
  return {.cpu = std::string(names->cpu), .cuda = cuda, .cuda_name = std::string(names->cuda)};
}

BackendChoice BackendChoice::of(const GroupEngine& engine) {
  const auto names = engine.backend_names();
  if (names.size() == 1) return {.cpu = names.front(), .cuda = Cuda::none};
  return {.cpu = names.front(), .cuda = Cuda::required, .cuda_name = names.back()};
}

GroupBackends::GroupBackends(const BackendChoice& choice, const GroupMembers& members, const ConnectOptions& connect)
    : choice_(choice), members_(members), connect_(connect) {
  const BackendPlugin& plugin = load_backend(choice.cpu);  // a group of one checks it, too
  backends_.push_back({choice.cpu, (members.size() == 1 ? kLocalBackend : plugin).create(config())});
  if (choice_.cuda == BackendChoice::Cuda::none) return;
  try {
    candidate_ = GroupBackend{choice_.cuda_name, load_backend(choice_.cuda_name).create(config())};
  } catch (const Error& error) {
    obstacle_ = std::string(error.what()).substr(0, kLongestReason);
  }
}

BackendConfig GroupBackends::config() const {
  return {.group = members_.name,
          .rank = members_.rank,
          .size = members_.size(),
          .nodes = members_.nodes,
          .interface_address = connect_.interface_address,
          .connect_timeout = connect_.timeout,
          .device = connect_.device,
          .splits_off = connect_.splits_off};
}

Bytes GroupBackends::addresses() const {
  BackendAddresses addresses{.cpu = backends_.front().backend->address(), .obstacle = obstacle_};
  try {
    if (candidate_) addresses.cuda = candidate_->backend->address();
  } catch (const Error& error) {
    addresses.obstacle = std::string(error.what()).substr(0, kLongestReason);
  }
  return base::encode(VersionedAddresses{.version = DDP_VERSION_STRING, .addresses = base::encode(addresses)});
}

void GroupBackends::connect(const std::vector<Bytes>& addresses, Deadline deadline) {
  std::vector<Bytes> first;
  std::vector<BackendAddresses> all;
  std::map<std::string, std::vector<int>> versions;
  for (std::size_t member = 0; member < addresses.size(); ++member) {
    const auto its = base::decode<VersionedAddresses>(addresses[member]);
    versions[its.version].push_back(members_.global(static_cast<int>(member)));
    if (versions.size() > 1) continue;
    all.push_back(base::decode<BackendAddresses>(its.addresses));
    first.push_back(std::move(all.back().cpu));
  }
  refuse_other_versions(versions);
  connect_one(backends_.front(), first, deadline);
  refuse_without_cpu();
  if (choice_.cuda != BackendChoice::Cuda::none) connect_cuda(all, deadline);
}

/// Protocols of different versions may differ in ways that no message reveals.
void GroupBackends::refuse_other_versions(const std::map<std::string, std::vector<int>>& versions) const {
  if (versions.size() == 1) return;
  std::string cause;
  std::vector<int> all;
  for (const auto& [version, ranks] : versions) {
    cause += fmt::format("{}{}: libddp {}", cause.empty() ? "" : "; ", format_ranks(ranks), version);
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  std::sort(all.begin(), all.end());
  throw Error{{.code = ErrorCode::conflict,
               .attempted = fmt::format("making the group '{}'", members_.name),
               .cause = std::move(cause),
               .ranks = std::move(all),
               .hint = "install the same version on all nodes"}};
}

/// Barriers and the comparison of arguments are operations on CPU tensors.
void GroupBackends::refuse_without_cpu() const {
  const GroupBackend& first = backends_.front();
  if (first.backend->traits().serves_cpu) return;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = fmt::format("making the group '{}'", members_.name),
               .cause = fmt::format("its backend '{}' serves no CPU tensors", first.name),
               .hint = fmt::format("cpu:host,cuda:{} has another one for them", first.name)}};
}

void GroupBackends::connect_one(GroupBackend& backend, const std::vector<Bytes>& addresses, Deadline deadline) const {
  try {
    backend.backend->connect(addresses, deadline);
  } catch (const Error& error) {  // a backend knows only ranks of the group
    ErrorDetail detail = error.detail();
    for (int& rank : detail.ranks) rank = members_.global(rank);
    throw Error{std::move(detail)};
  }
}

/// The name for messages.
std::string GroupBackends::cuda_name() const {
  return choice_.cuda_name == "nccl" ? "NCCL" : fmt::format("'{}'", choice_.cuda_name);
}

/// All ranks see the same addresses and reach the same result.
void GroupBackends::connect_cuda(const std::vector<BackendAddresses>& all, Deadline deadline) {
  std::map<std::string, std::vector<int>> obstacles;
  std::vector<int> without;
  std::vector<Bytes> addresses;
  for (std::size_t member = 0; member < all.size(); ++member) {
    addresses.push_back(all[member].cuda);
    if (all[member].obstacle.empty()) continue;
    without.push_back(members_.global(static_cast<int>(member)));
    obstacles[all[member].obstacle].push_back(without.back());
  }
  if (!without.empty()) {
    const bool some = without.size() < all.size();
    return do_without_cuda(
        {.code = ErrorCode::unavailable,
         .attempted = fmt::format("making group '{}' with {} for CUDA tensors", members_.name, cuda_name()),
         .cause = fmt::format("{} cannot use it; {}", without.size() > 1 ? "some ranks" : "a rank", list(obstacles)),
         .ranks = std::move(without),
         .hint = choice_.cuda_name == "nccl" ? "DDP_BACKEND=auto does without NCCL where it cannot be used" : ""},
        some);
  }
  try {
    connect_one(*candidate_, addresses, deadline);
  } catch (const Error& error) {
    return do_without_cuda(error.detail(), true);
  }
  if (!candidate_->backend->traits().serves_cuda) {
    return do_without_cuda(
        {.code = ErrorCode::unavailable,
         .attempted = fmt::format("making group '{}' with {} for CUDA tensors", members_.name, cuda_name()),
         .cause = fmt::format("the backend '{}' serves no CUDA tensors", candidate_->name)},
        true);
  }
  if (members_.rank == 0) {
    base::log(base::LogLevel::info, "group '{}': CPU tensors by {}, CUDA tensors by {}", members_.name,
              backends_.front().name, candidate_->name);
  }
  backends_.push_back(std::move(*candidate_));
}

void GroupBackends::do_without_cuda(ErrorDetail why, bool surprising) {
  if (choice_.cuda == BackendChoice::Cuda::required) throw Error{std::move(why)};
  if (candidate_) candidate_->backend->close(Deadline::after(std::chrono::seconds(0)));
  candidate_.reset();
  why_no_cuda_ = fmt::format("; {} is not used: {}", cuda_name(), why.cause);
  if (members_.rank != 0) return;
  base::log(surprising ? base::LogLevel::warning : base::LogLevel::info,
            "group '{}': CPU tensors by {}, CUDA tensors by nothing: {}", members_.name, backends_.front().name,
            why.cause);
}

void connect_by_barriers(GroupEngine& engine, Deadline deadline) {
  const Lane* lane = engine.lane_of(DeviceType::cuda);
  if (lane == nullptr || !lane->traits.connects_by_barrier) return;
  Operation barrier;
  barrier.kind = OperationKind::barrier;
  // empty, on the device that selects the backend
  barrier.input = TensorView(nullptr, DType::uint8, {0}, {.type = DeviceType::cuda, .index = lane->traits.device});
  try {
    engine.submit(std::move(barrier), deadline).wait();
  } catch (const Error& error) {
    ErrorDetail detail = error.detail();
    detail.attempted = fmt::format("connecting {} for group '{}'", lane->name, engine.members().name);
    if (detail.hint.empty()) detail.hint = "programs without CUDA tensors can set DDP_BACKEND=host";
    throw Error{std::move(detail)};
  }
}

namespace host {
extern const BackendPlugin kBackend;  // declared here: its folder depends on this one
}
namespace {

constexpr auto kSymbol = "ddp_backend_plugin";

/// Backends that need no library of their own.
constexpr std::array kBuiltIn{&kLocalBackend, &host::kBackend};

/// Folder of the shared object that holds this function; empty when it is linked into the program.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_backend), &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

[[noreturn]] void fail(ErrorCode code, std::string_view name, std::string cause, std::string hint) {
  throw Error{{.code = code,
               .attempted = fmt::format("loading the communication backend '{}'", name),
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

void* open_library(std::string_view name) {
  const std::string file = base::backend_file(name);
  const std::string user_folder = base::Environment::process().text("DDP_BACKEND_PATH");
  std::vector<std::string> candidates;
  std::error_code ignored;
  if (!user_folder.empty()) candidates.push_back((std::filesystem::path(user_folder) / file).string());
  // a library that the user put there is meant, even if it cannot be loaded
  if (user_folder.empty() || !std::filesystem::exists(candidates.front(), ignored)) {
    if (const auto folder = own_folder(); !folder.empty()) candidates.push_back((folder / file).string());
    candidates.push_back(file);
  }
  std::string problems;
  for (const std::string& candidate : candidates) {
    // never closed: the backend's threads and exception types must outlive every group
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    problems += fmt::format("{}{}", problems.empty() ? "" : "; ", dlerror());
  }
  fail(ErrorCode::unavailable, name, problems, base::missing_backend_hint(name));
}

const BackendPlugin& load(std::string_view name) {
  if (!base::may_name_backend(name)) {
    fail(ErrorCode::invalid_argument, name, "that is not the name of a backend",
         fmt::format("give {}", base::kBackendRule));
  }
  void* library = open_library(name);
  const auto* plugin = static_cast<const BackendPlugin*>(dlsym(library, kSymbol));
  if (plugin == nullptr) {
    fail(ErrorCode::unavailable, name, fmt::format("its library does not export {}", kSymbol), "reinstall libddp");
  }
  if (plugin->version != kBackendVersion) {
    fail(ErrorCode::mismatch, name,
         fmt::format("the plugin has interface version {}, this library {}", plugin->version, kBackendVersion),
         "install the plugin and libddp.so of the same version");
  }
  if (plugin->name == nullptr || name != plugin->name) {
    fail(ErrorCode::mismatch, name,
         fmt::format("the plugin in its file is '{}'", plugin->name != nullptr ? plugin->name : ""),
         fmt::format("a plugin's name is that of its file: {}", base::backend_file(name)));
  }
  return *plugin;
}

}  // namespace

bool is_built_in(std::string_view name) noexcept {
  return std::any_of(kBuiltIn.begin(), kBuiltIn.end(), [name](const auto* plugin) { return name == plugin->name; });
}

const BackendPlugin& load_backend(std::string_view name) {
  for (const BackendPlugin* plugin : kBuiltIn) {
    if (name == plugin->name) return *plugin;
  }
  static std::mutex mutex;
  static std::map<std::string, const BackendPlugin*, std::less<>> loaded;
  const std::lock_guard lock(mutex);
  const auto known = loaded.find(name);
  if (known != loaded.end()) return *known->second;
  const BackendPlugin& plugin = load(name);
  loaded.emplace(name, &plugin);
  return plugin;
}

}  // namespace ddp::collectives
