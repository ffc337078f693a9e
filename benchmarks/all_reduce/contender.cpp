#include "contender.hpp"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "collectives/reduce_kernels.hpp"

namespace ddp::bench {
namespace {

constexpr auto kPatience = std::chrono::seconds(120);

class ProcessGroupContender final : public Contender {
 public:
  explicit ProcessGroupContender(World& world) : group_(make_process_group(world, "gloo")) {}
  std::string name() const override { return "libddp"; }
  void all_reduce(std::vector<float>& values) override { group_.all_reduce(values).wait(); }

 private:
  ProcessGroup group_;
};

/// The FileStore's folder, which rank 0 makes and removes once all ranks are connected.
class RendezvousFolder {
 public:
  RendezvousFolder(World& world, const std::string& key) {
    KeyValueStore& store = world.key_value_store();
    const Deadline deadline = Deadline::after(kPatience);
    if (world.rank() == 0) {
      std::string pattern = (std::filesystem::temp_directory_path() / "all_reduce.XXXXXX").string();
      if (mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), pattern);
      own_ = pattern;
      store.put(key, std::as_bytes(std::span{pattern}));
    }
    store.fence(deadline);
    const Bytes path = store.get(0, key, deadline);
    path_.assign(reinterpret_cast<const char*>(path.data()), path.size());
  }
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;
  ~RendezvousFolder() {
    std::error_code ignored;  // a leftover in the temporary folder is harmless
    if (!own_.empty()) std::filesystem::remove_all(own_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::filesystem::path own_;
};

class DirectContender final : public Contender {
 public:
  DirectContender(World& world, Combine combine)
      : combine_(combine), context_(std::make_shared<gloo::rendezvous::Context>(world.rank(), world.world_size())) {
    const std::string key = "bench." + std::to_string(static_cast<int>(combine));
    const RendezvousFolder folder(world, key);
    gloo::transport::tcp::attr attributes;
    attributes.hostname = world.interface_address();
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(folder.path());
    context_->connectFullMesh(store, device);
    world.key_value_store().fence(Deadline::after(kPatience));  // before rank 0 removes the folder
  }
  std::string name() const override {
    return combine_ == Combine::libddp ? "gloo, libddp's kernel" : "gloo, gloo::sum<float>";
  }
  void all_reduce(std::vector<float>& values) override {
    gloo::AllreduceOptions options(context_);
    options.setTag(1);
    options.setTimeout(kPatience);
    if (combine_ == Combine::libddp) {
      options.setReduceFunction(collectives::reduce_kernel(DType::float32, ReduceOp::sum));
      options.setOutput(reinterpret_cast<std::uint32_t*>(values.data()), values.size());
    } else {
      options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
      options.setOutput(values.data(), values.size());
    }
    gloo::allreduce(options);
  }

 private:
  Combine combine_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

std::unique_ptr<Contender> process_group_contender(World& world) {
  return std::make_unique<ProcessGroupContender>(world);
}

std::unique_ptr<Contender> direct_contender(World& world, Combine combine) {
  return std::make_unique<DirectContender>(world, combine);
}

}  // namespace ddp::bench
