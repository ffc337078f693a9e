#include "store_server/witness_conversation.hpp"

#include <utility>

namespace ddp::store_server {

std::size_t WitnessConversation::missing_bytes() const {
  // what a statement has beyond its head is known once the head is there
  const std::size_t size = expected_ == WitnessMessage::hello ? kHelloBytes : message_bytes(expected_, received_);
  return size - received_.size();
}

WitnessConversation::Step WitnessConversation::feed(std::string_view bytes, const StoreKey& key) {
  received_.append(bytes.substr(0, missing_bytes()));
  const bool wrong_begin = expected_ == WitnessMessage::hello && received_.size() > 1 &&
                           static_cast<std::uint8_t>(received_[1]) != kWitnessVersion;
  if (wrong_begin) return Step::broken;
  if (missing_bytes() > 0) return Step::incomplete;
  const std::string message = std::exchange(received_, {});
  if (expected_ == WitnessMessage::hello) {
    const auto nonce = parse_hello(message);
    if (!nonce) return Step::broken;
    seal_.emplace(key, *nonce, random_bytes());
    expected_ = WitnessMessage::statement;
    return Step::greeted;
  }
  if (expected_ == WitnessMessage::statement) {
    auto statement = seal_->read_statement(message);
    if (!statement) return Step::broken;
    statement_ = std::move(*statement);
    expected_ = WitnessMessage::answer;
    return Step::stated;
  }
  const auto answer = seal_->read_answer(message);
  if (!answer) return Step::broken;
  answer_ = *answer;
  return Step::answered;
}

}  // namespace ddp::store_server
