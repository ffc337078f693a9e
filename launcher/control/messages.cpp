// Control messages as bytes and back, field by field as message_fields.hpp lists them.
#include "control/messages.hpp"

#include <algorithm>
#include <array>

#include "base/message.hpp"
#include "control/message_fields.hpp"

namespace ddp::launcher::control {

Bytes encode(const Message& message) {
  const auto* encoded = std::get_if<Encoded>(&message);
  if (encoded == nullptr) return base::encode(message);
  Bytes bytes = *encoded->bytes;
  if (encoded->rest) bytes.insert(bytes.end(), encoded->rest->begin(), encoded->rest->end());
  return bytes;
}

bool Encoded::operator==(const Encoded& other) const { return encode(*this) == encode(other); }

Encoded encode_once(const Message& message) {
  if (const auto* encoded = std::get_if<Encoded>(&message)) return *encoded;
  return {.bytes = std::make_shared<const Bytes>(encode(message))};
}

Message decode(std::span<const std::byte> bytes) { return base::decode<Message>(bytes); }

bool is_bulk(std::span<const std::byte> bytes) {
  static const std::array kinds{Message{Fence{}}.index(), Message{ModexRequest{}}.index(),
                                Message{ModexReply{}}.index(), Message{ConsoleOutput{}}.index(),
                                Message{RanksObserved{}}.index()};
  return !bytes.empty() && std::find(kinds.begin(), kinds.end(), std::to_integer<std::size_t>(bytes[0])) != kinds.end();
}

const char* name_of(const Message& message) {
  return std::visit(
      []<class Kind>(const Kind&) {
        if constexpr (base::IsDescribed<Kind>) return description(static_cast<const Kind*>(nullptr)).heading.name;
        return "Encoded";
      },
      message);
}

}  // namespace ddp::launcher::control
