// A TCPStore server as a program, for tests and benchmarks: prints its port, and serves until standard input closes.
//   store_server_main [--listen ADDRESS]... [--port PORT] [--stored-bytes N]
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>

#include <ddp/error.hpp>

#include "store_server/store_server.hpp"

namespace {

void wait_for_end_of_input() {
  std::array<char, 256> ignored;
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, ignored.data(), ignored.size());
    if (count == 0 || (count < 0 && errno != EINTR)) return;
  }
}

int usage(std::string_view what) {
  std::fprintf(stderr, "store_server_main: %.*s\n", static_cast<int>(what.size()), what.data());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  ddp::store_server::StoreServerOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (i + 1 == argc) return usage("the last option has no value");
    const std::string value = argv[i + 1];
    if (option == "--listen") {
      options.listen_addresses.push_back(value);
    } else if (option == "--port") {
      if (std::from_chars(value.data(), value.data() + value.size(), options.port).ec != std::errc{}) {
        return usage("the port is no number");
      }
    } else if (option == "--stored-bytes") {
      std::size_t& bytes = options.limits.stored_bytes;
      if (std::from_chars(value.data(), value.data() + value.size(), bytes).ec != std::errc{}) {
        return usage("the limit is no number");
      }
    } else {
      return usage("an option is not known");
    }
  }
  try {
    const ddp::store_server::StoreServer server{options};
    std::printf("%d\n", server.port());
    std::fflush(stdout);
    wait_for_end_of_input();
  } catch (const ddp::Error& error) {
    return usage(error.what());
  }
}
