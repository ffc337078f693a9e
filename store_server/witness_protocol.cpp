// Proofs are libsodium's HMAC-SHA-512-256 over the kind of the message, both nonces, and the message.
#include "store_server/witness_protocol.hpp"

#include <sodium.h>

#include <algorithm>
#include <cstring>

namespace ddp::store_server {
namespace {

static_assert(kProofBytes == crypto_auth_BYTES);
static_assert(StoreKey::kBytes == crypto_auth_KEYBYTES);

constexpr std::string_view kLabel = "libddp store witness";
constexpr std::size_t kEndpointBytes = 16 + 2;
constexpr std::size_t kStatementHead = 32 + 2 + 1;

template <class Container>
void put(std::string& out, const Container& bytes) {
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <class Int>
void put_little_endian(std::string& out, Int value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

void put(std::string& out, const Endpoint& end) {
  put(out, end.address.bytes());
  put_little_endian(out, end.port);
}

/// Takes fields off a message whose length is known to be right.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : left_(bytes) {}

  template <class Int>
  Int integer() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Int); ++i)
      value |= std::uint64_t{static_cast<std::uint8_t>(left_[i])} << (8 * i);
    left_.remove_prefix(sizeof(Int));
    return static_cast<Int>(value);
  }
  template <std::size_t Size>
  std::array<std::uint8_t, Size> bytes() {
    std::array<std::uint8_t, Size> out{};
    std::memcpy(out.data(), left_.data(), Size);
    left_.remove_prefix(Size);
    return out;
  }
  PeerAddress address() { return PeerAddress{bytes<16>()}; }
  Endpoint endpoint() {
    const PeerAddress at = address();
    return {.address = at, .port = integer<std::uint16_t>(), .interface = 0};
  }

 private:
  std::string_view left_;
};

std::size_t body_bytes(WitnessMessage message) {
  switch (message) {
    case WitnessMessage::hello: return kHelloBytes - kProofBytes;
    case WitnessMessage::challenge: return sizeof(Nonce);
    case WitnessMessage::statement: return kStatementHead;
    case WitnessMessage::welcome: return 1 + kEndpointBytes;
    case WitnessMessage::question: return 8 + 2 * kEndpointBytes;
    case WitnessMessage::answer: return 8 + 1 + 4;
  }
  return 0;
}

}  // namespace

std::size_t message_bytes(WitnessMessage message, std::string_view begun) {
  std::size_t size = body_bytes(message) + kProofBytes;
  if (message == WitnessMessage::statement && begun.size() >= kStatementHead) {
    size += 16 * std::min<std::size_t>(static_cast<std::uint8_t>(begun[kStatementHead - 1]), kMostAddresses);
  }
  return size;
}

std::string hello_message(const Nonce& witness) {
  std::string message{static_cast<char>(kWitnessByte), static_cast<char>(kWitnessVersion)};
  put(message, witness);
  return message;
}

std::optional<Nonce> parse_hello(std::string_view message) {
  if (message.size() != kHelloBytes || static_cast<std::uint8_t>(message[0]) != kWitnessByte ||
      static_cast<std::uint8_t>(message[1]) != kWitnessVersion) {
    return std::nullopt;
  }
  return Fields{message.substr(2)}.bytes<sizeof(Nonce)>();
}

Nonce challenge_nonce(std::string_view message) { return Fields{message}.bytes<sizeof(Nonce)>(); }

std::string WitnessSeal::proven_text(WitnessMessage kind, std::string_view body) const {
  std::string text{kLabel};
  text.push_back(static_cast<char>(kind));
  put(text, witness_);
  put(text, store_);
  text.append(body);
  return text;
}

std::string WitnessSeal::seal(WitnessMessage kind, std::string body) const {
  const std::string text = proven_text(kind, body);
  std::array<std::uint8_t, kProofBytes> proof{};
  ::crypto_auth(proof.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(), key_.bytes().data());
  put(body, proof);
  return body;
}

std::optional<std::string_view> WitnessSeal::open(WitnessMessage kind, std::string_view message) const {
  if (message.size() != message_bytes(kind, message)) return std::nullopt;
  const std::string_view body = message.substr(0, message.size() - kProofBytes);
  const std::string text = proven_text(kind, body);
  const std::string_view proof = message.substr(body.size());
  if (::crypto_auth_verify(reinterpret_cast<const unsigned char*>(proof.data()),
                           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                           key_.bytes().data()) != 0) {
    return std::nullopt;
  }
  return body;
}

std::string WitnessSeal::challenge() const {
  std::string body;
  put(body, store_);
  return seal(WitnessMessage::challenge, body);
}

bool WitnessSeal::proves_challenge(std::string_view message) const {
  return open(WitnessMessage::challenge, message).has_value();
}

std::string WitnessSeal::statement(const Statement& statement) const {
  const std::size_t count = std::min(statement.addresses.size(), kMostAddresses);
  std::string body;
  put(body, statement.host);
  put_little_endian(body, statement.own.port);
  put_little_endian(body, static_cast<std::uint8_t>(count));
  for (std::size_t i = 0; i < count; ++i) put(body, statement.addresses[i].bytes());
  return seal(WitnessMessage::statement, body);
}

std::optional<Statement> WitnessSeal::read_statement(std::string_view message) const {
  const auto body = open(WitnessMessage::statement, message);
  if (!body) return std::nullopt;
  Fields fields{*body};
  Statement statement;
  statement.host = fields.bytes<32>();
  statement.own.port = fields.integer<std::uint16_t>();
  const auto count = fields.integer<std::uint8_t>();
  if (count == 0 || count > kMostAddresses) return std::nullopt;
  for (int i = 0; i < count; ++i) statement.addresses.push_back(fields.address());
  statement.own.address = statement.addresses.front();
  return statement;
}

std::string WitnessSeal::welcome(const Welcome& welcome) const {
  std::string body;
  put_little_endian(body, static_cast<std::uint8_t>(welcome.role));
  put(body, welcome.seen);
  return seal(WitnessMessage::welcome, body);
}

std::optional<Welcome> WitnessSeal::read_welcome(std::string_view message) const {
  const auto body = open(WitnessMessage::welcome, message);
  if (!body) return std::nullopt;
  Fields fields{*body};
  const auto role = fields.integer<std::uint8_t>();
  if (role < static_cast<std::uint8_t>(Role::resident) || role > static_cast<std::uint8_t>(Role::translated))
    return std::nullopt;
  return Welcome{.role = static_cast<Role>(role), .seen = fields.endpoint()};
}

std::string WitnessSeal::question(const Question& question) const {
  std::string body;
  put_little_endian(body, question.id);
  put(body, question.source);
  put(body, question.destination);
  return seal(WitnessMessage::question, body);
}

std::optional<Question> WitnessSeal::read_question(std::string_view message) const {
  const auto body = open(WitnessMessage::question, message);
  if (!body) return std::nullopt;
  Fields fields{*body};
  Question question;
  question.id = fields.integer<std::uint64_t>();
  question.source = fields.endpoint();
  question.destination = fields.endpoint();
  return question;
}

std::string WitnessSeal::answer(const Answer& answer) const {
  std::string body;
  put_little_endian(body, answer.id);
  put_little_endian(body, static_cast<std::uint8_t>(answer.owner.kind));
  put_little_endian(body, static_cast<std::uint32_t>(answer.owner.uid));
  return seal(WitnessMessage::answer, body);
}

std::optional<Answer> WitnessSeal::read_answer(std::string_view message) const {
  const auto body = open(WitnessMessage::answer, message);
  if (!body) return std::nullopt;
  Fields fields{*body};
  Answer answer;
  answer.id = fields.integer<std::uint64_t>();
  const auto kind = fields.integer<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(SocketOwner::Kind::unknowable)) return std::nullopt;
  answer.owner = {.kind = static_cast<SocketOwner::Kind>(kind), .uid = fields.integer<std::uint32_t>()};
  return answer;
}

}  // namespace ddp::store_server
