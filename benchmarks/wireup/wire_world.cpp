// The cost of wire-up with libddp. Like bare_pmix.c, prints one line of times since exec.
//
//   wire_world records            World::init (one put, one fence), then reads every rank's endpoint record
//   wire_world values             World::init, a put of 256 bytes, a second fence, then reads every rank's value
//   wire_world keys COUNT BYTES   World::init, COUNT puts of BYTES bytes, a fence, then reads every rank's last value
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include <ddp/ddp.hpp>

#include "since_exec.h"

namespace {

constexpr auto kPatience = std::chrono::seconds(120);
constexpr std::size_t kValueBytes = 256;

ddp::Bytes value_of(int rank, std::size_t bytes) { return ddp::Bytes(bytes, static_cast<std::byte>(rank)); }

void read_records(ddp::World& world) {
  for (int rank = 0; rank < world.world_size(); ++rank) {
    if (world.hostname(rank).empty()) throw std::runtime_error("rank " + std::to_string(rank) + " has no host name");
  }
}

void put_keys(ddp::World& world, int count, std::size_t bytes) {
  const ddp::Bytes value = value_of(world.rank(), bytes);
  for (int i = 0; i < count; ++i) world.key_value_store().put("value." + std::to_string(i), value);
}

void read_values(ddp::World& world, int key, std::size_t bytes) {
  const ddp::Deadline deadline = ddp::Deadline::after(kPatience);
  const std::string name = "value." + std::to_string(key);
  for (int rank = 0; rank < world.world_size(); ++rank) {
    if (world.key_value_store().get(rank, name, deadline) != value_of(rank, bytes)) {
      throw std::runtime_error("rank " + std::to_string(rank) + " returned a value it did not put");
    }
  }
}

void measure(std::string_view mode, int count, std::size_t bytes) {
  const long long started = since_exec_ns();
  ddp::World world = ddp::World::init();
  const long long joined = since_exec_ns();
  long long put = joined;
  long long fenced = joined;
  if (mode == "records") {
    read_records(world);
  } else {
    put_keys(world, count, bytes);
    put = since_exec_ns();
    world.key_value_store().fence(ddp::Deadline::after(kPatience));
    fenced = since_exec_ns();
    read_values(world, count - 1, bytes);
  }
  const long long wired = since_exec_ns();
  const long long cpu = cpu_since_exec_ns();
  std::printf(
      "{\"rank\": %d, \"ranks\": %d, \"main\": %lld, \"joined\": %lld, \"put\": %lld, \"fenced\": %lld, \"wired\": "
      "%lld, \"cpu\": "
      "%lld}\n",
      world.rank(), world.world_size(), started, joined, put, fenced, wired, cpu);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (argc == 2 && (mode == "records" || mode == "values")) {
    measure(mode, 1, kValueBytes);
  } else if (argc == 4 && mode == "keys" && std::atoi(argv[2]) > 0) {
    measure(mode, std::atoi(argv[2]), static_cast<std::size_t>(std::atoll(argv[3])));
  } else {
    std::fprintf(stderr, "usage: %s records | values | keys COUNT BYTES\n", argv[0]);
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "wire_world: %s\n", error.what());
  return 1;
}
