#include "collectives/gloo/gloo_mesh.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>

#include "base/byte_stream.hpp"
#include "base/library_thread.hpp"

namespace ddp::collectives::gloo_backend {
namespace {

using ::gloo::transport::tcp::Address;

// A pair waits for its peer five times the timeout it was created with (Pair::waitUntil in gloo/transport/tcp/pair.h).
constexpr int kConnectTimeoutFactor = 5;

sockaddr_storage numeric_address(const std::string& text) {
  sockaddr_storage storage{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
  } else if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
  } else {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "connecting to a rank over Gloo",
                 .cause = fmt::format("'{}' is not a numeric address", text),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  return storage;
}

std::uint16_t& port_of(sockaddr_storage& storage) {
  return storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(storage).sin_port;
}

std::string text_of(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bits = storage.ss_family == AF_INET6
                         ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr)
                         : static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(storage).sin_addr);
  return inet_ntop(storage.ss_family, bits, text, sizeof text) != nullptr ? text : "";
}

}  // namespace

GlooMesh::GlooMesh(const BackendConfig& config) : ::gloo::Context(config.rank, config.size) {
  ::gloo::transport::tcp::attr attributes;
  attributes.hostname = config.interface_address;
  const base::SignalsBlocked for_the_devices_thread;  // Gloo writes to sockets without MSG_NOSIGNAL
  device_ = ::gloo::transport::tcp::CreateDevice(attributes);
  const auto connections = device_->createContext(rank, size);
  connections->setTimeout(std::max(config.connect_timeout / kConnectTimeoutFactor, std::chrono::milliseconds(1)));
  transport_ = std::make_shared<AbortableTransport>(connections);
  transportContext_ = transport_;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) transportContext_->createPair(peer);
  }
}

Bytes GlooMesh::address() const {
  base::ByteWriter writer;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const Address full(transportContext_->getPair(peer)->address().bytes());
    sockaddr_storage storage = full.getSockaddr();
    if (writer.bytes().empty()) writer.text(text_of(storage));
    writer.integer(port_of(storage)).integer(static_cast<std::int64_t>(full.getSeq()));
  }
  return std::move(writer).bytes();
}

void GlooMesh::connect(const std::vector<Bytes>& addresses, Deadline deadline) {
  const base::SignalsBlocked while_writing_to_peers;
  // in rank order on every rank, as Gloo's own rendezvous does
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto fail = [&](ErrorCode code, std::string cause) {
      throw Error{{.code = code,
                   .attempted = fmt::format("connecting rank {} to rank {} of the group over Gloo", rank, peer),
                   .cause = std::move(cause),
                   .native = {},
                   .ranks = {peer},
                   .hint = "does the interface route between the hosts? DDP_SOCKET_IFNAME chooses another"}};
    };
    if (deadline.expired()) fail(ErrorCode::timeout, "the deadline expired before its turn");
    base::ByteReader reader(addresses[static_cast<std::size_t>(peer)], "Gloo address");
    sockaddr_storage storage = numeric_address(reader.text());
    std::int64_t sequence = 0;
    for (int entry = 0; entry < size; ++entry) {  // the peer lists its ports for every rank but itself
      if (entry == peer) continue;
      const auto port = reader.integer<std::uint16_t>();
      const auto number = reader.integer<std::int64_t>();
      if (entry == rank) {
        port_of(storage) = port;
        sequence = number;
      }
    }
    reader.expect_end();
    try {
      transportContext_->getPair(peer)->connect(Address(storage, sequence).bytes());
    } catch (const ::gloo::Exception& problem) {
      fail(deadline.expired() ? ErrorCode::timeout : ErrorCode::unavailable, problem.what());
    }
  }
}

}  // namespace ddp::collectives::gloo_backend
