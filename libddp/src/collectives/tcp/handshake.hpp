// How two ranks prove to each other that they belong to the same mesh, before the first byte of data is believed. Each
// rank has published an address, a port and a secret over the job's key-value store; who has read both secrets is of
// the job. The connecting side sends a hello, the accepting one a challenge with its proof, the connecting one its
// proof, the accepting one a verdict. Secrets never cross the wire, and random numbers of both sides keep recordings
// from being replayed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>

namespace ddp::collectives::tcp {

using Key = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

/// What a rank publishes.
struct RankRecord {
  std::string address;  ///< numeric
  std::uint16_t port = 0;
  Key secret{};
  friend bool operator==(const RankRecord&, const RankRecord&) = default;
};
Bytes encode(const RankRecord& record);
/// Throws Error(protocol).
RankRecord decode_rank_record(std::span<const std::byte> bytes);

struct Hello {
  std::uint32_t from = 0;  ///< ranks in the mesh
  std::uint32_t to = 0;
  Nonce nonce{};
  friend bool operator==(const Hello&, const Hello&) = default;
};
inline constexpr std::size_t kHelloBytes = 8 + 4 + 4 + 32;
using HelloBytes = std::array<std::byte, kHelloBytes>;
HelloBytes encode(const Hello& hello) noexcept;
/// Nothing when it is no hello of this version.
std::optional<Hello> parse_hello(std::span<const std::byte, kHelloBytes> bytes) noexcept;

/// A nonce, then a proof.
inline constexpr std::size_t kChallengeBytes = 64;

/// The accepting side's last word.
enum class Verdict : std::uint8_t {
  welcome = 1,  ///< frames may follow
  crossed = 2,  ///< this side is connecting, too, and its connection is the one that stays
};

enum class Side : std::uint8_t { connecting = 1, accepting = 2 };

/// Thread-safe; to be called before the others. Throws Error(unavailable).
void prepare_proofs();
Key random_key();

/// One rank's knowledge of a mesh: who is in it, where, and how each is proven.
class MeshIdentity {
 public:
  /// @param records of all ranks, as published. Throws Error(protocol) naming the rank.
  MeshIdentity(int rank, const std::vector<Bytes>& records);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(records_.size()); }
  const RankRecord& record(int rank) const { return records_[static_cast<std::size_t>(rank)]; }

  /// That @p side knows both ranks' secrets, for this one connection of this mesh.
  Proof prove(Side side, const Hello& hello, const Nonce& accepting) const;
  /// Takes the same time for all wrong proofs.
  bool proves(std::span<const std::byte> proof, Side side, const Hello& hello, const Nonce& accepting) const;

 private:
  int rank_;
  std::vector<RankRecord> records_;
  Key mesh_{};  // stands for all records
};

}  // namespace ddp::collectives::tcp
