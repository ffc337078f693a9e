// A communication library as the collectives benchmark sees it. Each program links one: libddp_contender.cpp or
// mpi_contender.cpp; torch_gloo.py does the same in Python.
#pragma once

#include <cstddef>
#include <memory>

namespace ddp::bench {

/// One rank. Elements are float32, sums are in rank order or not, the root is rank 0. All calls return when this rank's
/// result is complete.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual void barrier() = 0;
  virtual void all_reduce(float* values, std::size_t count) = 0;  ///< sum in place
  virtual void broadcast(float* values, std::size_t count) = 0;
  virtual void all_gather(float* input, float* output, std::size_t part) = 0;
  virtual void reduce_scatter(float* input, float* output, std::size_t part) = 0;
  virtual void all_to_all(float* input, float* output, std::size_t part) = 0;
  virtual void send(float* values, std::size_t count, int peer) = 0;
  virtual void recv(float* values, std::size_t count, int peer) = 0;
  virtual double max(double value) = 0;  ///< over all ranks
};

/// Joins the other ranks.
std::unique_ptr<Contender> make_contender();

}  // namespace ddp::bench
