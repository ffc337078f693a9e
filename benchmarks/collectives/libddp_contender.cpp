// libddp in the collectives benchmark, over its public interface and whatever backend DDP_BACKEND names.
#include <ddp/ddp.hpp>

#include "contender.hpp"

namespace ddp::bench {
namespace {

TensorView view(float* values, std::size_t count) { return std::span<float>{values, count}; }

class LibddpContender final : public Contender {
 public:
  LibddpContender() : world_(World::init()), group_(make_process_group(world_)) {}

  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.size(); }
  void barrier() override { group_.barrier().wait(); }
  void all_reduce(float* values, std::size_t count) override { group_.all_reduce(view(values, count)).wait(); }
  void broadcast(float* values, std::size_t count) override { group_.broadcast(view(values, count), 0).wait(); }
  void all_gather(float* input, float* output, std::size_t part) override {
    group_.all_gather(view(input, part), view(output, part * size())).wait();
  }
  void reduce_scatter(float* input, float* output, std::size_t part) override {
    group_.reduce_scatter(view(input, part * size()), view(output, part)).wait();
  }
  void all_to_all(float* input, float* output, std::size_t part) override {
    group_.all_to_all(view(input, part * size()), view(output, part * size())).wait();
  }
  void send(float* values, std::size_t count, int peer) override { group_.send(view(values, count), peer).wait(); }
  void recv(float* values, std::size_t count, int peer) override { group_.recv(view(values, count), peer).wait(); }
  double max(double value) override {
    group_.all_reduce(std::span{&value, 1}, ReduceOp::max).wait();
    return value;
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(group_.size()); }

  World world_;
  ProcessGroup group_;
};

}  // namespace

std::unique_ptr<Contender> make_contender() { return std::make_unique<LibddpContender>(); }

}  // namespace ddp::bench
