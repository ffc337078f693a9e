// A PMI server in a thread, for ranks that are threads of the test: what slurmstepd and srun (PMI-2), or Hydra and Flux
// (PMI-1), do together, and the ways in which they can go wrong.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "kvs/pmi2_wire.hpp"

namespace ddp::test {

class FakePmiServer {
 public:
  struct Options {
    int world_size = 1;
    int version = 2;
    std::string greeting = "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
    int rank_offset = 0;                          ///< added to the rank in the answer to fullinit
    std::string silent_command = {};              ///< never answered
    std::string fatal_command = {};               ///< answered by closing the connection
    std::map<std::string, std::string> raw = {};  ///< command to the bytes that are sent instead of the right answer
  };

  explicit FakePmiServer(Options options);
  FakePmiServer(const FakePmiServer&) = delete;
  FakePmiServer& operator=(const FakePmiServer&) = delete;
  ~FakePmiServer();

  /// The descriptor that rank @p rank would find in PMI_FD. Each can be taken once.
  base::UniqueFd take_client(int rank) { return std::move(clients_[static_cast<std::size_t>(rank)]); }

 private:
  struct Connection {
    base::UniqueFd fd;
    std::string received{};
    bool greeted = false;
    bool in_fence = false;
  };

  void serve();
  void handle_bytes(int rank);
  void handle_lines(int rank);
  void handle(int rank, const kvs::PmiMessage& request);
  void handle_1(int rank, const kvs::PmiMessage& request);
  bool misbehave(int rank, const std::string& command);
  void answer(int rank, const kvs::PmiMessage& message);
  void finish_fence();

  Options options_;
  std::vector<Connection> connections_;
  std::vector<base::UniqueFd> clients_;
  base::UniqueFd stop_read_;
  base::UniqueFd stop_write_;
  std::map<std::string, std::string> pending_;  ///< put, but not fenced
  std::map<std::string, std::string> visible_;
  std::map<std::string, std::string> names_;
  std::map<std::string, std::string> node_attributes_;
  std::thread thread_;  ///< last, so that it starts when all the rest is there
};

}  // namespace ddp::test
