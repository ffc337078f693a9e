// What may arrive at the TCPStore server from what says that it is a witness. The input is a byte that says how the
// rest is cut into pieces, one that says which messages are proven with the right key, and what the witness sends; a
// message that is to be proven gets its proof from here. Only what is proven is believed, nothing beyond a message is
// read, and the same holds for what a witness reads of the store.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "store_server/witness_conversation.hpp"
#include "store_server/witness_protocol.hpp"

namespace {

using namespace ddp::store_server;
using Step = WitnessConversation::Step;

void require(bool condition) {
  if (!condition) std::abort();
}

/// The text that the fuzzer cannot find: the right statement of as many addresses as the input says.
std::string right_statement(const WitnessSeal& seal, std::size_t count) {
  Statement statement;
  statement.addresses.resize(1 + count % kMostAddresses);
  return seal.statement(statement);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static const StoreKey key = StoreKey::parse("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
  const std::size_t piece_size = 1 + std::size_t{data[0]};
  const bool states = data[1] % 2 == 1;
  const Nonce nonce{};
  std::string input{reinterpret_cast<const char*>(data) + 2, size - 2};
  WitnessConversation conversation;
  if (states) {
    require(conversation.feed(hello_message(nonce), key) == Step::greeted);
    const WitnessSeal seal{key, nonce, challenge_nonce(conversation.seal().challenge())};
    const std::string statement = right_statement(seal, data[1] / 2);
    Step step = Step::incomplete;
    for (std::size_t at = 0; at < statement.size();) {
      require(step == Step::incomplete);
      const std::size_t piece = std::min(conversation.missing_bytes(), statement.size() - at);
      step = conversation.feed(std::string_view{statement}.substr(at, piece), key);
      at += piece;
    }
    require(step == Step::stated && conversation.statement().addresses.size() == 1 + data[1] / 2 % kMostAddresses);
    // a witness that reads these bytes as the store's
    require(!seal.read_welcome(input) && !seal.read_question(input) && !seal.proves_challenge(input));
  }
  bool greeted = states;
  std::string_view left = input;
  while (!left.empty()) {
    const std::size_t missing = conversation.missing_bytes();
    require(missing > 0 && missing <= kLongestMessage);
    // a buffer of its own, so that a read past its end is found
    const std::string piece{left.substr(0, std::min(piece_size, missing))};
    left.remove_prefix(piece.size());
    const Step step = conversation.feed(piece, key);
    if (step == Step::broken) return 0;
    require(step == Step::incomplete || (step == Step::greeted && !greeted));  // it cannot prove anything
    greeted = greeted || step == Step::greeted;
  }
  return 0;
}
