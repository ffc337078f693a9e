// What a TCPStore server may send. The whole client runs over a socket pair whose other end has sent the input and then
// closed: every call must end with a value or a ddp::Error, without waiting and without an allocation of the size that
// the input states.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/unique_fd.hpp"
#include "fuzz/fuzz.hpp"
#include "kvs/tcp_store_client.hpp"

namespace {

template <class Action>
void tolerate_error(Action&& action) {
  try {
    action();
  } catch (const ddp::Error&) {
  }
}

// The server's part of joining, without which no input would get anywhere: the answers to PING and ADD.
void answer_joining(int server) {
  std::array<std::uint8_t, 64> request{};
  ::recv(server, request.data(), 10, MSG_WAITALL);
  ::send(server, request.data() + 6, 4, MSG_NOSIGNAL);
  const std::int64_t workers = 1;
  ::send(server, &workers, sizeof workers, MSG_NOSIGNAL);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp;
  if (size == 0 || size > 16 * 1024) return 0;
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) std::abort();
  base::UniqueFd client{pair[0]};
  base::UniqueFd server{pair[1]};
  ::fcntl(client.get(), F_SETFL, O_NONBLOCK);
  // The first byte chooses what is asked.
  const std::uint8_t choice = data[0];
  std::thread answers([&] {
    if (choice % 4 != 0) answer_joining(server.get());
    ::send(server.get(), data + 1, size - 1, MSG_NOSIGNAL);
    ::shutdown(server.get(), SHUT_WR);
  });
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = Deadline::after(std::chrono::seconds(5));
  tolerate_error([&] {
    kvs::TcpStoreClient store{std::move(client), "fuzz", 0, 2, "p", deadline};
    if (choice % 4 == 1) tolerate_error([&] { store.fence(Deadline::after(std::chrono::milliseconds(20))); });
    if (choice % 4 >= 2) {
      const Bytes value = store.get(1, "key", deadline);
      if (value.size() > size) std::abort();  // a value cannot have more bytes than were sent
    }
  });
  answers.join();
  if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(4)) std::abort();  // it has waited for nothing
  return 0;
}
