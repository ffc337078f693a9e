#include "task_side/step_store.hpp"

#include <poll.h>

#include <array>
#include <bit>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/socket.hpp"
#include "store_server/store_protocol.hpp"

namespace ddp::srun_plugin {
namespace {

using store_server::Operation;

// Integers are in the host's order (store_protocol.hpp), and ByteWriter's are little-endian.
static_assert(std::endian::native == std::endian::little);

constexpr std::uint8_t kStopWaiting = 0;  // answers to WAIT and CANCEL_WAIT
constexpr std::uint8_t kWaitCanceled = 1;
constexpr std::uint64_t kLargestValue = 8 * 1024 * 1024;

base::ByteWriter request(Operation operation) {
  return std::move(base::ByteWriter{}.integer(static_cast<std::uint8_t>(operation)));
}

base::ByteWriter& append(base::ByteWriter& writer, std::span<const std::byte> text) {
  return writer.integer(static_cast<std::uint64_t>(text.size())).raw(text);
}

base::ByteWriter& append(base::ByteWriter& writer, std::string_view text) {
  return append(writer, std::as_bytes(std::span{text}));
}

Bytes request_of_keys(Operation operation, const std::vector<std::string>& keys) {
  base::ByteWriter writer = request(operation);
  writer.integer(static_cast<std::uint64_t>(keys.size()));
  for (const std::string& key : keys) append(writer, key);
  return std::move(writer).bytes();
}

[[noreturn]] void refuse(const std::string& attempted, std::string cause) {
  throw Error{{.code = ErrorCode::protocol, .attempted = attempted, .cause = std::move(cause)}};
}

}  // namespace

StepStore::StepStore(const std::string& address, std::uint16_t port)
    : what_(fmt::format("asking the step's store at {} port {}", address, port)),
      socket_(base::connect_tcp(address, port, Deadline::after(kAnswerLimit))) {
  send(request(Operation::validate).integer(store_server::kMagic).bytes());
}

void StepStore::set(const std::string& key, const Bytes& value) {
  base::ByteWriter writer = request(Operation::set);
  append(writer, key);
  send(append(writer, value).bytes());
}

Bytes StepStore::set_first(const std::string& key, const Bytes& value) {
  base::ByteWriter writer = request(Operation::compare_set);
  append(writer, key);
  append(writer, std::string_view{});
  send(append(writer, value).bytes());
  return receive_value();
}

std::int64_t StepStore::add(const std::string& key, std::int64_t amount) {
  base::ByteWriter writer = request(Operation::add);
  append(writer, key);
  send(writer.integer(amount).bytes());
  std::array<std::byte, sizeof(std::int64_t)> sum{};
  receive(sum);
  return base::ByteReader{sum, "a sum"}.integer<std::int64_t>();
}

bool StepStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  send(request_of_keys(Operation::wait, keys));
  const bool answered = base::wait_for(socket_.get(), POLLIN, deadline);
  if (!answered) send(request(Operation::cancel_wait).bytes());
  const std::uint8_t answer = receive_byte();
  if (answer != kStopWaiting && (answered || answer != kWaitCanceled))
    refuse(what_, fmt::format("the answer to WAIT is {}", answer));
  // the keys came while the cancellation was on its way, which is answered, too
  if (!answered && answer == kStopWaiting) receive_byte();
  return answer == kStopWaiting;
}

void StepStore::ask_wait(const std::vector<std::string>& keys) { send(request_of_keys(Operation::wait, keys)); }

void StepStore::take_wait() {
  const std::uint8_t answer = receive_byte();
  if (answer != kStopWaiting) refuse(what_, fmt::format("the answer to WAIT is {}", answer));
}

std::vector<Bytes> StepStore::get(const std::vector<std::string>& keys) {
  send(request_of_keys(Operation::multi_get, keys));
  std::vector<Bytes> values;
  for (std::size_t i = 0; i < keys.size(); ++i) values.push_back(receive_value());
  return values;
}

void StepStore::send(const Bytes& request) {
  base::send_all(socket_.get(), request, Deadline::after(kAnswerLimit), what_);
}

std::uint8_t StepStore::receive_byte() {
  std::byte byte{};
  receive({&byte, 1});
  return std::to_integer<std::uint8_t>(byte);
}

Bytes StepStore::receive_value() {
  std::array<std::byte, sizeof(std::uint64_t)> head{};
  receive(head);
  const auto size = base::ByteReader{head, "size of a value"}.integer<std::uint64_t>();
  if (size > kLargestValue) refuse(what_, fmt::format("a value has {} bytes", size));
  Bytes value(size);
  receive(value);
  return value;
}

void StepStore::receive(std::span<std::byte> bytes) {
  base::receive_exactly(socket_.get(), bytes, Deadline::after(kAnswerLimit), what_);
}

}  // namespace ddp::srun_plugin
