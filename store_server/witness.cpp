#include "store_server/witness.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
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
#include "store_server/own_addresses.hpp"
#include "store_server/socket_owner.hpp"
#include "store_server/store_protocol.hpp"
#include "store_server/witness_protocol.hpp"

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

void send_text(int fd, const std::string& text, Deadline deadline, const std::string& attempted) {
  base::send_all(fd, std::as_bytes(std::span{text}), deadline, attempted);
}

std::string receive_text(int fd, std::size_t size, Deadline deadline, const std::string& attempted) {
  std::string text(size, '\0');
  base::receive_exactly(fd, std::as_writable_bytes(std::span{text}), deadline, attempted);
  return text;
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

  std::string attempted;
  base::UniqueFd socket;
  std::optional<WitnessSeal> seal;
  std::optional<Endpoint> store_end;  ///< as seen from here
  SocketOwners owners;
  base::WakeEvent stop;
  std::thread thread;
};

Witness::Impl::Impl(const std::string& address, std::uint16_t port, const StoreKey& key, Deadline deadline)
    : attempted(fmt::format("making this node known to the TCPStore server at {}", describe(address, port))) {
  check_numeric(address, attempted);
  socket = base::connect_tcp(address, port, deadline);
  base::keep_alive(socket.get());
  const Nonce own_nonce = random_bytes();
  send_text(socket.get(), hello_message(own_nonce), deadline, attempted);
  try {
    const std::string challenge =
        receive_text(socket.get(), message_bytes(WitnessMessage::challenge), deadline, attempted);
    seal.emplace(key, own_nonce, challenge_nonce(challenge));
    if (!seal->proves_challenge(challenge)) {
      throw failure(ErrorCode::conflict, attempted, "who listens there does not know this job's secret",
                    "it may be the store of another job, or of this job's user at an address that several hosts have");
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    throw failure(ErrorCode::conflict, attempted, "it closed the connection: it is no store of a job, or is ending");
  }
  const auto own = Endpoint::own(socket.get());
  if (!own) throw failure(ErrorCode::peer_lost, attempted, "the connection broke");
  send_text(socket.get(), seal->statement(own_statement(*own)), deadline, attempted);
  Welcome welcome;
  try {
    const auto read =
        seal->read_welcome(receive_text(socket.get(), message_bytes(WitnessMessage::welcome), deadline, attempted));
    if (!read) throw failure(ErrorCode::conflict, attempted, "its answer does not prove that it is this job's store");
    welcome = *read;
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
    const std::size_t size = message_bytes(WitnessMessage::question);
    std::string message;
    for (;;) {
      pollfd entries[] = {{.fd = socket.get(), .events = POLLIN, .revents = 0},
                          {.fd = stop.fd(), .events = POLLIN, .revents = 0}};
      if (::poll(entries, 2, -1) < 0 && errno != EINTR) return;
      if (entries[1].revents != 0) return;
      if (entries[0].revents == 0) continue;
      const std::size_t had = message.size();
      message.resize(size);
      const ssize_t count = ::recv(socket.get(), message.data() + had, size - had, 0);
      message.resize(had + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
      if (count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return;
      if (message.size() < size) continue;
      const auto question = seal->read_question(message);
      if (!question) return;
      message.clear();
      SocketOwner owner = owners.owner_of(question->source, question->destination);
      // the store may be behind a gateway: then its address is another from here
      if (owner.kind == SocketOwner::Kind::none && store_end && *store_end != question->destination)
        owner = owners.owner_of(question->source, *store_end);
      const Answer answer{.id = question->id, .owner = owner};
      send_text(socket.get(), seal->answer(answer), Deadline::after(kSendLimit), attempted);
    }
  } catch (const std::exception& error) {
    base::log(base::LogLevel::info, "{}", error.what());
  }
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
    send_text(socket.get(), request, deadline, attempted);
    answer = receive_text(socket.get(), sizeof number, deadline, attempted);
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
