// The smallest program that trains: steps of one all_reduce, until a signal or a lost peer ends it. Appends to the file
// of ELASTIC_MARKS once its first step is complete on this rank: time (CLOCK_MONOTONIC, ns), the process id of rank 0,
// rank, world size, its own process id. After each step, the file ELASTIC_MARKS.PID has the time. elastic_worker.py
// does the same with torch.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>

#include <ddp/ddp.hpp>

#include "store_server/store_server.hpp"

namespace {

constexpr auto kStep = std::chrono::milliseconds(10);

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void mark(std::int64_t token, int rank, int world_size) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const std::string line = std::to_string(std::chrono::nanoseconds(now).count()) + " " + std::to_string(token) + " " +
                           std::to_string(rank) + " " + std::to_string(world_size) + " " + std::to_string(getpid()) +
                           "\n";
  const int fd = open(variable("ELASTIC_MARKS").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0 || write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    throw std::runtime_error("ELASTIC_MARKS cannot be written");
  close(fd);
}

void train() {
  // Where torchrun's agents serve no store, rank 0 has to, as torch's would.
  std::optional<ddp::store_server::StoreServer> store;
  if (variable("TORCHELASTIC_USE_AGENT_STORE") == "False") {
    const auto port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
    if (variable("RANK") == "0") store.emplace(ddp::store_server::StoreServerOptions{.port = port});
  }
  ddp::World world = ddp::World::init();
  ddp::ProcessGroup group = ddp::make_process_group(world);
  std::array<std::int64_t, 1> sum{world.rank() == 0 ? getpid() : 0};
  group.all_reduce(std::span{sum}).wait();
  mark(sum[0], world.rank(), world.world_size());
  const std::string steps = variable("ELASTIC_MARKS") + "." + std::to_string(getpid());
  const int file = open(steps.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  while (true) {
    const std::int64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    if (pwrite(file, &now, sizeof now, 0) != sizeof now) throw std::runtime_error(steps + " cannot be written");
    std::this_thread::sleep_for(kStep);
    sum[0] = 0;
    group.all_reduce(std::span{sum}).wait();
  }
}

}  // namespace

int main() {
  try {
    train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "elastic_worker: %s\n", error.what());
  }
  return 1;
}
