// An MPI in the collectives benchmark: compiled once against Open MPI, once against MPICH.
#define OMPI_SKIP_MPICXX 1  // the C++ bindings of neither
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <stdexcept>
#include <string>

#include "contender.hpp"

namespace ddp::bench {
namespace {

void check(int code) {
  if (code != MPI_SUCCESS) throw std::runtime_error("MPI error " + std::to_string(code));
}

class MpiContender final : public Contender {
 public:
  MpiContender() {
    check(MPI_Init(nullptr, nullptr));
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
    check(MPI_Comm_size(MPI_COMM_WORLD, &ranks_));
  }
  MpiContender& operator=(MpiContender&&) = delete;
  ~MpiContender() override { MPI_Finalize(); }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  void barrier() override { check(MPI_Barrier(MPI_COMM_WORLD)); }
  void all_reduce(float* values, std::size_t count) override {
    check(MPI_Allreduce(MPI_IN_PLACE, values, number(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
  }
  void broadcast(float* values, std::size_t count) override {
    check(MPI_Bcast(values, number(count), MPI_FLOAT, 0, MPI_COMM_WORLD));
  }
  void all_gather(float* input, float* output, std::size_t part) override {
    check(MPI_Allgather(input, number(part), MPI_FLOAT, output, number(part), MPI_FLOAT, MPI_COMM_WORLD));
  }
  void reduce_scatter(float* input, float* output, std::size_t part) override {
    check(MPI_Reduce_scatter_block(input, output, number(part), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
  }
  void all_to_all(float* input, float* output, std::size_t part) override {
    check(MPI_Alltoall(input, number(part), MPI_FLOAT, output, number(part), MPI_FLOAT, MPI_COMM_WORLD));
  }
  void send(float* values, std::size_t count, int peer) override {
    check(MPI_Send(values, number(count), MPI_FLOAT, peer, 0, MPI_COMM_WORLD));
  }
  void recv(float* values, std::size_t count, int peer) override {
    check(MPI_Recv(values, number(count), MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  }
  double max(double value) override {
    check(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
    return value;
  }

 private:
  static int number(std::size_t count) { return static_cast<int>(count); }

  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace

std::unique_ptr<Contender> make_contender() { return std::make_unique<MpiContender>(); }

}  // namespace ddp::bench
