// What clients of the TCPStore server may send. The input is cut among three clients and into pieces of its own choice.
// Whatever the bytes, each client is served or refused with Error(protocol), the same bytes in one piece give the same
// requests, memory stays within what has arrived, and nothing is left of clients that are gone.
#include "fuzz/fuzz.hpp"
#include "store_server/key_space.hpp"
#include "store_server/store_protocol.hpp"

namespace {

using namespace ddp::store_server;

constexpr ClientId kClients = 3;
/// Few, so that inputs of some KiB exceed them.
constexpr std::size_t kMostBytes = 4096;
constexpr std::size_t kMostRequestBytes = 1024;

class Clients final : public Outboxes {
 public:
  struct Client {
    RequestParser parser{kMostRequestBytes};
    std::string sent;
    std::vector<std::string> requests;  ///< as text, to be compared
    bool gone = false;
    std::string outbox;
  };

  std::string& outbox(ClientId client) override {
    Client& one = clients_[static_cast<std::size_t>(client)];
    require(!one.gone);
    return one.outbox;
  }

  void send(ClientId client, std::string_view bytes) {
    Client& one = clients_[static_cast<std::size_t>(client)];
    if (one.gone) return;
    one.sent.append(bytes);
    const std::string piece{bytes};  // a buffer of its own, so that a read past its end is found
    try {
      one.parser.feed(piece, [&](const Request& request) {
        one.requests.push_back(describe(request));
        keys_.apply(client, request, *this);
      });
      require(one.parser.held_bytes() <= 64 + 16 * one.sent.size());
    } catch (const ddp::Error& error) {
      require(error.code() == ddp::ErrorCode::protocol);
      one.gone = true;
      keys_.forget(client, *this);
    }
    require(one.outbox.size() <= StoreLimits{}.answer_bytes && keys_.held_bytes() <= kMostBytes);
    one.outbox.clear();
  }

  void check_and_end() {
    for (ClientId client = 0; client < kClients; ++client) {
      Client& one = clients_[static_cast<std::size_t>(client)];
      std::vector<std::string> whole;
      RequestParser parser{kMostRequestBytes};
      try {
        parser.feed(one.sent, [&](const Request& request) { whole.push_back(describe(request)); });
      } catch (const ddp::Error&) {
        require(one.gone);
      }
      // the key space may have refused a request, after which the client is heard no more
      require(whole.size() >= one.requests.size() && (one.gone || whole.size() == one.requests.size()));
      for (std::size_t i = 0; i < one.requests.size(); ++i) require(whole[i] == one.requests[i]);
      one.gone = true;
      keys_.forget(client, still_here_);
    }
    require(keys_.waiting_clients() == 0 && keys_.awaited_keys() == 0);
  }

 private:
  struct Anything final : Outboxes {
    std::string& outbox(ClientId) override { return box; }
    std::string box;
  };

  static std::string describe(const Request& request) {
    std::string text{to_string(request.operation)};
    text += '/' + std::to_string(request.number) + '/' + std::to_string(request.word);
    for (const std::string_view one : request.texts) text.append("/").append(one);
    return text;
  }

  KeySpace keys_{kMostBytes};
  std::array<Client, kClients> clients_;
  Anything still_here_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 64 * 1024) return 0;
  Clients clients;
  // A piece: a byte for the client and whether it validates itself first, one for the number of bytes, the bytes.
  std::string_view input{reinterpret_cast<const char*>(data), size};
  std::array<bool, kClients> begun{};
  while (input.size() >= 2) {
    const auto choice = static_cast<std::uint8_t>(input[0]);
    const auto length = static_cast<std::uint8_t>(input[1]);
    const auto client = static_cast<ClientId>(choice % kClients);
    bool& has_begun = begun[static_cast<std::size_t>(client)];
    if (!has_begun && choice < 128) clients.send(client, std::string_view{"\0\xCE\xF7\x85\x3C", 5});
    has_begun = true;
    clients.send(client, input.substr(2, length));
    input.remove_prefix(std::min<std::size_t>(input.size(), 2 + std::size_t{length}));
  }
  clients.check_and_end();
  return 0;
}
