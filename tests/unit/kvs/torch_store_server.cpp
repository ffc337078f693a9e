#include "unit/kvs/torch_store_server.hpp"

#include <poll.h>

#include <ddp/deadline.hpp>

#include "base/socket.hpp"
#include "support/checkout.hpp"

namespace ddp::test {
namespace {

constexpr const char* kProgram =
    "import sys\n"
    "from torch.distributed import TCPStore\n"
    "make = lambda uv: TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, use_libuv=uv)\n"
    "stores = [make(True), make(False)]\n"
    "for store in stores: store.set('from-python', 'hello')\n"
    "print(*(store.port for store in stores), flush=True)\n"
    "sys.stdin.read()\n";
constexpr std::chrono::seconds kStartLimit{90};  // the first import of torch reads some 2 GB

}  // namespace

TorchStoreServer::TorchStoreServer() {
  const char* given = std::getenv("DDP_TORCH_PYTHON");
  const std::string python = given != nullptr ? given : (ddp::test::source_root() / "build/venv/bin/python").string();
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) {
    missing_ = "no pipes";
    return;
  }
  child_ = ::fork();
  if (child_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::execl(python.c_str(), python.c_str(), "-c", kProgram, static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  stdin_.reset(in[1]);
  const base::UniqueFd output{out[0]};
  std::string line;
  const Deadline deadline = Deadline::after(kStartLimit);
  while (line.find('\n') == std::string::npos && base::wait_for(output.get(), POLLIN, deadline)) {
    std::array<char, 256> buffer{};
    const ssize_t count = ::read(output.get(), buffer.data(), buffer.size());
    if (count <= 0) break;
    line.append(buffer.data(), static_cast<std::size_t>(count));
  }
  if (std::sscanf(line.c_str(), "%hu %hu", &libuv_port_, &plain_port_) != 2) {
    missing_ = python + " cannot import torch.distributed; set DDP_TORCH_PYTHON to a Python that can";
  }
}

TorchStoreServer::~TorchStoreServer() {
  if (child_ <= 0) return;
  stdin_.reset();
  if (!missing_.empty()) ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

}  // namespace ddp::test
