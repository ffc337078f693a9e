// PyTorch's own TCPStore servers in a helper process, for tests of the client.
#pragma once

#include <sys/types.h>

#include "base/unique_fd.hpp"

namespace ddp::test {

/// Finds Python in DDP_TORCH_PYTHON, then <repository>/build/venv/bin/python.
class TorchStoreServer {
 public:
  TorchStoreServer();
  TorchStoreServer& operator=(TorchStoreServer&&) = delete;
  ~TorchStoreServer();

  /// Why there is no server; empty if there is one.
  const std::string& missing() const { return missing_; }
  /// @param libuv which of PyTorch's two servers
  std::uint16_t port(bool libuv) const { return libuv ? libuv_port_ : plain_port_; }

 private:
  pid_t child_ = -1;
  base::UniqueFd stdin_;  ///< the helper ends when it is closed
  std::uint16_t libuv_port_ = 0;
  std::uint16_t plain_port_ = 0;
  std::string missing_;
};

}  // namespace ddp::test
