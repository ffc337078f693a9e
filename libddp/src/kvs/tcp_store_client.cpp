#include "kvs/tcp_store_client.hpp"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/socket.hpp"
#include "kvs/store_contract.hpp"

namespace ddp::kvs {
namespace {

// torch/csrc/distributed/c10d/TCPStoreBackend.hpp
enum class Operation : std::uint8_t {
  validate = 0,
  set = 1,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  multi_get = 10,
  cancel_wait = 12,
  ping = 13,
};
constexpr std::uint32_t kMagic = 0x3C85F7CE;
constexpr std::uint8_t kReady = 0;
constexpr std::uint8_t kNotReady = 1;
constexpr std::uint8_t kStopWaiting = 0;
constexpr std::uint8_t kWaitCanceled = 1;

// The libuv server drops clients that send values above 8 MiB.
constexpr std::size_t kMaxServerBytes = 8 * 1024 * 1024;
constexpr std::size_t kMaxPartBytes = 4 * 1024 * 1024;
constexpr std::size_t kChecksInFlight = 256;
constexpr std::chrono::milliseconds kConnectPause{50};

class Request {
 public:
  explicit Request(Operation operation) { writer_.integer(static_cast<std::uint8_t>(operation)); }
  template <class Int>
  Request& integer(Int value) {
    writer_.integer(value);
    return *this;
  }
  Request& bytes(std::span<const std::byte> data) {
    writer_.integer(static_cast<std::uint64_t>(data.size())).raw(data);
    return *this;
  }
  Request& key(std::string_view key) { return bytes(std::as_bytes(std::span{key})); }
  operator const Bytes&() const { return writer_.bytes(); }

 private:
  base::ByteWriter writer_;
};

[[noreturn]] void throw_protocol(std::string attempted, std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = std::move(attempted),
               .cause = std::move(cause),
               .hint = "is it PyTorch's TCPStore (2.2 or newer) that listens at MASTER_ADDR:MASTER_PORT?"}};
}

base::UniqueFd connect_patiently(const std::string& host, std::uint16_t port, Deadline deadline) {
  const Deadline patience = earlier(deadline, Deadline::after(TcpStoreClient::kConnectPatience));
  for (;;) {
    try {
      return base::connect_tcp(host, port, deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable || patience.expired()) throw;
    }
    std::this_thread::sleep_for(std::min(kConnectPause, patience.remaining()));
  }
}

}  // namespace

TcpStoreClient::TcpStoreClient(const std::string& host, std::uint16_t port, int rank, int world_size,
                               std::string key_prefix, Deadline deadline)
    : TcpStoreClient(connect_patiently(host, port, deadline), fmt::format("{}:{}", host, port), rank, world_size,
                     std::move(key_prefix), deadline) {}

TcpStoreClient::TcpStoreClient(base::UniqueFd socket, std::string server, int rank, int world_size,
                               std::string key_prefix, Deadline deadline)
    : socket_(std::move(socket)),
      server_(std::move(server)),
      rank_(rank),
      world_size_(world_size),
      prefix_(std::move(key_prefix)) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = describe("joining"),
                 .cause = fmt::format("there is no rank {} of {}", rank, world_size),
                 .hint = "check RANK and WORLD_SIZE"}};
  }
  join(deadline);
}

// Sends VALIDATE and PING and counts this worker, as PyTorch's own client does.
void TcpStoreClient::join(Deadline deadline) {
  const auto nonce = static_cast<std::uint32_t>(std::random_device{}());
  try {
    send(Request{Operation::validate}.integer(kMagic), deadline);
    send(Request{Operation::ping}.integer(nonce), deadline);
    if (receive<std::uint32_t>(deadline) != nonce)
      throw_protocol(describe("joining"), "the answer to PING is another number");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    throw Error{{.code = ErrorCode::peer_lost,
                 .attempted = describe("joining"),
                 .cause = fmt::format("it accepted the connection, and closed it without an answer: {}", error.cause()),
                 .native = error.native(),
                 .hint =
                     "the stores of ddprun and srun --ddp serve only processes of the job's user in their node's own "
                     "network; a line of ddprun or srun says whom they refused and why"}};
  }
  send(Request{Operation::add}.key("init/").integer(std::int64_t{1}), deadline);
  receive<std::int64_t>(deadline);
}

void TcpStoreClient::put(std::string_view key, std::span<const std::byte> value) {
  check_key(key);
  check_usable(usable_, fmt::format("putting '{}' into the {}", key, transport()));
  const Deadline deadline = Deadline::after(kPutTimeout);
  const std::string name = value_key(rank_, key);
  if (value.size() <= kMaxPartBytes) return set(name, value, deadline);
  std::size_t parts = 0;
  for (; !value.empty(); ++parts) {
    const auto part = value.first(std::min(value.size(), kMaxPartBytes));
    set(fmt::format("{}#{}", name, parts), part, deadline);
    value = value.subspan(part.size());
  }
  set(name + "#parts", base::to_bytes(std::to_string(parts)), deadline);
}

Bytes TcpStoreClient::get(int rank, std::string_view key, Deadline deadline) {
  check_key(key);
  check_rank(rank, world_size_);
  const std::string attempted = fmt::format("getting '{}' of rank {} from the {}", key, rank, transport());
  check_usable(usable_, attempted);
  const std::string name = value_key(rank, key);
  if (exists(name, deadline)) return fetch(name, deadline);
  if (!exists(name + "#parts", deadline)) throw key_not_found(attempted);
  const std::string count = base::to_text(fetch(name + "#parts", deadline));
  std::size_t parts = 0;
  if (std::from_chars(count.data(), count.data() + count.size(), parts).ec != std::errc{}) {
    throw_protocol(attempted, "the number of its parts is not a number");
  }
  Bytes value;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::string part_name = fmt::format("{}#{}", name, part);
    if (!exists(part_name, deadline)) throw_protocol(attempted, fmt::format("part {} of {} is missing", part, parts));
    const Bytes bytes = fetch(part_name, deadline);
    value.insert(value.end(), bytes.begin(), bytes.end());
  }
  return value;
}

std::vector<Bytes> TcpStoreClient::get_all(std::string_view key, Deadline deadline) {
  check_key(key);
  check_usable(usable_, fmt::format("getting '{}' of all ranks from the {}", key, transport()));
  std::vector<Bytes> values;
  values.reserve(static_cast<std::size_t>(world_size_));
  for (int first = 0; first < world_size_; first += kPageRanks) {
    const int last = std::min(world_size_, first + kPageRanks);
    std::vector<std::string> names;
    for (int rank = first; rank < last; ++rank) names.push_back(value_key(rank, key));
    // PyTorch's server ends when it is asked for several keys of which one is missing.
    if (!all_exist(names, deadline)) {  // one is missing, or in parts
      for (int rank = first; rank < last; ++rank) values.push_back(get(rank, key, deadline));
      continue;
    }
    Request request{Operation::multi_get};
    request.integer(static_cast<std::uint64_t>(names.size()));
    for (const std::string& name : names) request.key(name);
    send(request, deadline);
    for (const std::string& name : names) values.push_back(receive_value(name, deadline));
  }
  return values;
}

void TcpStoreClient::fence(Deadline deadline) {
  const std::uint64_t fence = fences_ + 1;
  const std::string attempted =
      fmt::format("fence {} of {} ranks over the {} at {}", fence, world_size_, transport(), server_);
  check_usable(usable_, attempted);
  usable_ = false;  // until the fence succeeds
  fences_ = fence;
  // Set before the count, so that every counted rank can be found.
  set(fence_key(fence, std::to_string(rank_)), base::to_bytes("1"), deadline);
  const std::int64_t arrived = add(fence_key(fence, "arrived"), 1, deadline);
  if (arrived > world_size_) {
    throw_protocol(attempted, fmt::format("{} ranks arrived; is the key prefix '{}' in use by another attempt?",
                                          arrived, prefix_));
  }
  if (arrived == world_size_) {
    set(fence_key(fence, "done"), base::to_bytes("1"), deadline);
  } else if (!wait_until_exists(fence_key(fence, "done"), before_reserve(deadline), deadline)) {
    std::vector<int> absent = find_absent(fence, deadline);
    // Ranks put their values before they arrive: if no rank is absent any more, the fence is complete.
    if (!absent.empty()) throw fence_timeout(attempted, std::move(absent), world_size_);
  }
  usable_ = true;
}

std::vector<int> TcpStoreClient::find_absent(std::uint64_t fence, Deadline deadline) {
  std::vector<int> absent;
  for (int first = 0; first < world_size_; first += static_cast<int>(kChecksInFlight)) {
    const int last = std::min(world_size_, first + static_cast<int>(kChecksInFlight));
    base::ByteWriter questions;
    for (int rank = first; rank < last; ++rank) {
      questions.raw(static_cast<const Bytes&>(
          Request{Operation::check}.integer(std::uint64_t{1}).key(fence_key(fence, std::to_string(rank)))));
    }
    send(questions.bytes(), deadline);
    for (int rank = first; rank < last; ++rank) {
      if (receive<std::uint8_t>(deadline) != kReady) absent.push_back(rank);
    }
  }
  return absent;
}

void TcpStoreClient::close() noexcept {
  usable_ = false;
  socket_.reset();
}

void TcpStoreClient::set(const std::string& key, std::span<const std::byte> value, Deadline deadline) {
  send(Request{Operation::set}.key(key).bytes(value), deadline);
}

Bytes TcpStoreClient::fetch(const std::string& key, Deadline deadline) {
  send(Request{Operation::get}.key(key), deadline);
  return receive_value(key, deadline);
}

Bytes TcpStoreClient::receive_value(const std::string& key, Deadline deadline) {
  const auto size = receive<std::uint64_t>(deadline);
  if (size > kMaxServerBytes) {
    usable_ = false;
    throw_protocol(describe("reading from"), fmt::format("the value '{}' is said to have {} bytes", key, size));
  }
  Bytes value(size);
  try {
    base::receive_exactly(socket_.get(), value, deadline, describe("reading from"));
  } catch (...) {
    usable_ = false;
    throw;
  }
  return value;
}

std::int64_t TcpStoreClient::add(const std::string& key, std::int64_t amount, Deadline deadline) {
  send(Request{Operation::add}.key(key).integer(amount), deadline);
  return receive<std::int64_t>(deadline);
}

bool TcpStoreClient::exists(const std::string& key, Deadline deadline) { return all_exist({&key, 1}, deadline); }

bool TcpStoreClient::all_exist(std::span<const std::string> keys, Deadline deadline) {
  Request request{Operation::check};
  request.integer(static_cast<std::uint64_t>(keys.size()));
  for (const std::string& key : keys) request.key(key);
  send(request, deadline);
  const auto answer = receive<std::uint8_t>(deadline);
  if (answer != kReady && answer != kNotReady) {
    usable_ = false;
    throw_protocol(describe("asking"), fmt::format("the answer to CHECK is {}", answer));
  }
  return answer == kReady;
}

// Returns false at @p deadline, after cancelling the wait, which the server must confirm by @p cancel_deadline.
bool TcpStoreClient::wait_until_exists(const std::string& key, Deadline deadline, Deadline cancel_deadline) {
  send(Request{Operation::wait}.integer(std::uint64_t{1}).key(key), deadline);
  if (base::wait_for(socket_.get(), POLLIN, deadline)) {
    if (const auto answer = receive<std::uint8_t>(cancel_deadline); answer != kStopWaiting) {
      throw_protocol(describe("waiting at"), fmt::format("the answer to WAIT is {}", answer));
    }
    return true;
  }
  send(Request{Operation::cancel_wait}, cancel_deadline);
  auto answer = receive<std::uint8_t>(cancel_deadline);
  const bool overtaken = answer == kStopWaiting;
  if (overtaken) answer = receive<std::uint8_t>(cancel_deadline);
  if (answer != kWaitCanceled)
    throw_protocol(describe("waiting at"), fmt::format("the answer to CANCEL_WAIT is {}", answer));
  return overtaken;
}

void TcpStoreClient::send(const Bytes& message, Deadline deadline) {
  try {
    base::send_all(socket_.get(), message, deadline, describe("sending to"));
  } catch (...) {
    usable_ = false;
    throw;
  }
}

template <class Int>
Int TcpStoreClient::receive(Deadline deadline) {
  Bytes bytes(sizeof(Int));
  try {
    base::receive_exactly(socket_.get(), bytes, deadline, describe("reading from"));
  } catch (...) {
    usable_ = false;
    throw;
  }
  return base::ByteReader{bytes, "TCPStore answer"}.integer<Int>();
}

std::string TcpStoreClient::describe(std::string_view operation) const {
  return fmt::format("{} the c10d TCPStore at {}", operation, server_);
}

// PyTorch's client prefixes its users' keys with a slash.
std::string TcpStoreClient::value_key(int rank, std::string_view key) const {
  return fmt::format("/{}/{}/{}", prefix_, rank, key);
}

// The fence's keys cannot clash with values, whose second part is a number.
std::string TcpStoreClient::fence_key(std::uint64_t fence, std::string_view part) const {
  return fmt::format("/{}/fence/{}/{}", prefix_, fence, part);
}

}  // namespace ddp::kvs
