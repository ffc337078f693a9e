#include "collectives/shm/join_message.hpp"

#include <algorithm>
#include <cstring>

#include <ddp/error.hpp>

namespace ddp::collectives::shm {
namespace {

constexpr std::uint32_t kJoinMagic = 0x31'6e'6a'73;  // "sjn1"
constexpr std::size_t kTextBytes = 256;

/// The fields in their order, for both directions.
template <class Message, class Field>
void fields(Message& message, std::uint32_t& magic, std::uint32_t& kind,
            std::array<std::uint64_t, kMaxRanks / 64>& ranks, std::array<char, kTextBytes>& text, Field&& field) {
  field(&magic, sizeof magic);
  field(&kind, sizeof kind);
  field(&message.rank, sizeof message.rank);
  field(&message.code, sizeof message.code);
  field(message.secret.data(), message.secret.size());
  field(&message.bytes, sizeof message.bytes);
  field(&message.first_step, sizeof message.first_step);
  field(ranks.data(), sizeof ranks);
  field(text.data(), text.size());
}

}  // namespace

std::array<std::byte, JoinMessage::kBytes> JoinMessage::pack() const {
  std::array<std::byte, kBytes> packet{};
  JoinMessage copy = *this;
  std::uint32_t magic = kJoinMagic;
  auto kind_number = static_cast<std::uint32_t>(kind);
  std::array<std::uint64_t, kMaxRanks / 64> set{};
  for (const int one : ranks) set[static_cast<std::size_t>(one) / 64] |= std::uint64_t{1} << (one % 64);
  std::array<char, kTextBytes> cut{};
  std::copy_n(text.begin(), std::min(text.size(), kTextBytes - 1), cut.begin());
  std::byte* to = packet.data();
  fields(copy, magic, kind_number, set, cut, [&](const void* from, std::size_t size) {
    std::memcpy(to, from, size);
    to += size;
  });
  return packet;
}

bool JoinMessage::parse(std::span<const std::byte> packet, JoinMessage& message) {
  if (packet.size() != kBytes) return false;
  std::uint32_t magic = 0;
  std::uint32_t kind_number = 0;
  std::array<std::uint64_t, kMaxRanks / 64> set{};
  std::array<char, kTextBytes> text{};
  const std::byte* from = packet.data();
  fields(message, magic, kind_number, set, text, [&](void* to, std::size_t size) {
    std::memcpy(to, from, size);
    from += size;
  });
  if (magic != kJoinMagic || kind_number > static_cast<std::uint32_t>(Kind::failed) || text.back() != '\0' ||
      message.code > static_cast<std::uint32_t>(ErrorCode::aborted)) {
    return false;
  }
  message.kind = static_cast<Kind>(kind_number);
  message.text = text.data();
  message.ranks.clear();
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if ((set[static_cast<std::size_t>(rank) / 64] >> (rank % 64) & 1U) != 0) message.ranks.push_back(rank);
  }
  return true;
}

}  // namespace ddp::collectives::shm
