// Opens CUDA's driver as libddp does and says what it found, or the error: the file in a line, then version and UUIDs.
// An argument is a library that the process loads before.
#include <dlfcn.h>

#include <cstdio>

#include <ddp/error.hpp>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] != 0 && dlopen(argv[1], RTLD_NOW) == nullptr) return 2;
  try {
    const ddp::cuda::Driver& driver = ddp::cuda::driver();
    std::printf("%s\n%d", driver.file().c_str(), driver.version());
    const int devices = ddp::cuda::device_count();
    for (int i = 0; i < devices; ++i) std::printf(" %s", ddp::cuda::device_facts(i).uuid.c_str());
    std::printf("\n");
    return 0;
  } catch (const ddp::Error& error) {
    std::printf("%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    return 1;
  }
}
