#include "store_server/witness.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <exception>
#include <fstream>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "store_server/peer_address.hpp"
#include "store_server/socket_owner.hpp"
#include "store_server/store_protocol.hpp"
#include "store_server/witness_protocol.hpp"
#include "stream/event_loop.hpp"

namespace ddp::store_server {
namespace {

/// For the store to read an answer, of which its kernel holds thousands.
constexpr std::chrono::seconds kSendLimit{30};

std::string describe(const std::string& address, std::uint16_t port) {
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                : fmt::format("[{}]:{}", address, port);
}

Error failure(ErrorCode code, const std::string& attempted, std::string cause, std::string hint = {}) {
  return Error{{.code = code, .attempted = attempted, .cause = std::move(cause), .hint = std::move(hint)}};
}

void check_numeric(const std::string& address, const std::string& attempted) {
  if (PeerAddress::parse(address)) return;
  throw failure(ErrorCode::invalid_argument, attempted,
                fmt::format("'{}' is not a numeric IPv4 or IPv6 address", address));
}

/// The kernel's random name of this boot, and the network namespace.
std::array<std::uint8_t, 32> host_identity() {
  std::array<std::uint8_t, 32> host{};
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::erase(boot, '-');
  for (std::size_t i = 0; i < 16 && 2 * i + 1 < boot.size(); ++i)
    host[i] = static_cast<std::uint8_t>(std::stoul(boot.substr(2 * i, 2), nullptr, 16));
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) == 0) {
    for (std::size_t i = 0; i < 8; ++i) host[16 + i] = static_cast<std::uint8_t>(network.st_ino >> (8 * i));
  }
  return host;
}

Statement own_statement(const Endpoint& own) {
  Statement statement{.host = host_identity(), .own = own, .addresses = {own.address}};
  for (const PeerAddress& address : own_addresses()) {
    const bool room = statement.addresses.size() < kMostAddresses;
    if (room && !address.is_loopback() && address != own.address) statement.addresses.push_back(address);
  }
  return statement;
}

}  // namespace

struct Witness::Impl {
  Impl(const std::string& address, std::uint16_t port, const StoreKey& key, Deadline deadline);
  ~Impl() {
    stop.ring();
    if (socket) ::shutdown(socket.get(), SHUT_RDWR);  // it may be sending to a store that does not read
    if (thread.joinable()) thread.join();
  }

  void answer_questions() noexcept;
  void answer(const Question& question);

  std::string attempted;
  base::UnsharedFd socket;
  std::optional<WitnessEnd> end;
  std::optional<Endpoint> store_end;  ///< as seen from here
  SocketOwners owners;
  base::WakeEvent stop;
  std::thread thread;
};

Witness::Impl::Impl(const std::string& address, std::uint16_t port, const StoreKey& key, Deadline deadline)
    : attempted(fmt::format("making this node known to the TCPStore server at {}", describe(address, port))) {
  check_numeric(address, attempted);
  socket = base::UnsharedFd{base::connect_tcp(address, port, deadline)};
  base::keep_alive(socket.get());
  try {
    end.emplace(socket.get(), key, deadline, attempted);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::peer_lost)
      throw failure(ErrorCode::conflict, attempted,
                    "it closed the connection: it is not the store of a job, or is ending");
    if (error.code() != ErrorCode::conflict && error.code() != ErrorCode::protocol) throw;
    if (error.code() == ErrorCode::protocol) throw failure(ErrorCode::conflict, attempted, error.cause());
    throw failure(ErrorCode::conflict, attempted, "the process listening there does not know this job's secret",
                  "it may be the store of another job, or of this job's user at an address that several hosts have");
  }
  const auto own = Endpoint::own(socket.get());
  if (!own) throw failure(ErrorCode::peer_lost, attempted, "the connection broke");
  Welcome welcome;
  try {
    end->send(own_statement(*own), deadline);
    welcome = end->receive<Welcome>(deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    throw failure(ErrorCode::conflict, attempted, "it closed the connection: it does not have this job's secret");
  }
  if (welcome.role == Role::translated) {
    throw failure(ErrorCode::unavailable, attempted,
                  fmt::format("connections of this node, here {}, reach it from {}: they are translated on the way "
                              "(NAT), so that it cannot tell whose they are",
                              own->text(), welcome.seen.text()),
                  "choose a network in which nodes see each other's own addresses; containers must use that of the "
                  "host");
  }
  if (welcome.role == Role::resident) {
    store_end = Endpoint::other(socket.get());
    thread = base::start_thread([this] { answer_questions(); });
  } else {
    socket.reset();
  }
}

void Witness::Impl::answer_questions() noexcept {
  try {
    stream::EventLoop loop;
    bool over = false;
    loop.watch(stop.fd(), [&] { over = true; });
    const auto read = [&] {
      while (const auto message = end->next()) answer(base::decode<Question>(*message));
    };
    loop.watch(socket.get(), read);
    read();  // a question may have come with the welcome
    while (!over) loop.run_once(Deadline::after(std::chrono::hours(1)));
  } catch (const std::exception& error) {  // also when the store has ended
    base::log(base::LogLevel::info, "{}", error.what());
  }
}

void Witness::Impl::answer(const Question& question) {
  SocketOwner owner = owners.owner_of(question.source, question.destination);
  // the store may be behind a gateway: then its address is another from here
  if (owner.kind == SocketOwner::Kind::none && store_end && *store_end != question.destination)
    owner = owners.owner_of(question.source, *store_end);
  end->send(Answer{.id = question.id, .owner = owner}, Deadline::after(kSendLimit));
}

Witness::Witness(const std::string& address, std::uint16_t port, const StoreKey& key, Deadline deadline)
    : impl_(std::make_unique<Impl>(address, port, key, deadline)) {}

Witness::~Witness() = default;

void Witness::wait() {
  if (impl_->thread.joinable()) impl_->thread.join();
}

void check_served(const std::string& address, std::uint16_t port, Deadline deadline) {
  const std::string attempted = fmt::format("using the TCPStore server at {}", describe(address, port));
  check_numeric(address, attempted);
  const base::UniqueFd socket = base::connect_tcp(address, port, deadline);
  const std::uint32_t number = 0x64647031;
  std::string request{static_cast<char>(Operation::validate)};
  request.append(reinterpret_cast<const char*>(&kMagic), sizeof kMagic);
  request.push_back(static_cast<char>(Operation::ping));
  request.append(reinterpret_cast<const char*>(&number), sizeof number);
  std::string answer;
  try {
    answer.resize(sizeof number);
    base::send_all(socket.get(), std::as_bytes(std::span{request}), deadline, attempted);
    base::receive_exactly(socket.get(), std::as_writable_bytes(std::span{answer}), deadline, attempted);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    throw failure(ErrorCode::unavailable, attempted,
                  "it refused an ordinary client of this node: it serves only processes of the job's user, on hosts "
                  "that it knows",
                  "a line of the job may say whom it refused and why");
  }
  if (answer != std::string_view{reinterpret_cast<const char*>(&number), sizeof number}) {
    throw failure(ErrorCode::protocol, attempted, "it does not answer as a TCPStore does");
  }
}

}  // namespace ddp::store_server
