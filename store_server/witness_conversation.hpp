// The store's side of a connection to a witness: what it has sent, and what is expected next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "store_server/witness_protocol.hpp"

namespace ddp::store_server {

class WitnessConversation {
 public:
  enum class Step {
    incomplete,
    greeted,   ///< challenge() is to be sent
    stated,    ///< it has proven the key: statement() is set
    answered,  ///< answer() is set
    broken,    ///< it does not know the key, or breaks the protocol
  };

  /// The most that may be read from the witness before the next step.
  std::size_t missing_bytes() const;
  /// Takes the next bytes, at most missing_bytes().
  Step feed(std::string_view bytes, const StoreKey& key);

  /// From Step::greeted on.
  const WitnessSeal& seal() const { return *seal_; }
  const Statement& statement() const { return statement_; }
  const Answer& answer() const { return answer_; }

 private:
  WitnessMessage expected_ = WitnessMessage::hello;
  std::string received_;  ///< of the message that is expected
  std::optional<WitnessSeal> seal_;
  Statement statement_;
  Answer answer_;
};

}  // namespace ddp::store_server
