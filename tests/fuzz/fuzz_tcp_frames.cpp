// What the other end of a rank's TCP connection may send once it has proven itself: frames. Whatever the bytes, they
// are refused or give something that is encoded to the same bytes again; and a connection that reads them as a stream
// places no more than their headers say.
#include <sys/socket.h>

#include "collectives/tcp/frame.hpp"
#include "collectives/tcp/link.hpp"
#include "fuzz/fuzz.hpp"

namespace {

using namespace ddp::collectives::tcp;

/// Has room for every frame, or for none of odd steps.
class Reader final : public LinkOwner {
 public:
  Placement place(int /*rank*/, const Frame& frame) override {
    require(frame.bytes <= kMostPayloadBytes);
    if (frame.step % 2 == 1) return {.kind = Placement::Kind::not_yet};
    if (frame.step % 4 == 2) return {.kind = Placement::Kind::refuse};
    payload_.resize(frame.bytes);
    return {.at = payload_.data()};
  }
  void whole(int /*rank*/, const Frame& frame) override { require(payload_.size() == frame.bytes); }
  void ended(int /*rank*/, int /*error*/, bool /*garbage*/) override {
    require(!ended_);
    ended_ = true;
  }

 private:
  std::vector<std::byte> payload_;
  bool ended_ = false;
};

void read_as_stream(std::span<const std::byte> bytes) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  ddp::base::UniqueFd theirs(ends[1]);
  Reader reader;
  Link link(0, reader);
  link.open(ddp::base::UniqueFd(ends[0]));
  for (const std::size_t piece : {std::size_t{7}, kHeaderBytes, std::size_t{1'000}}) {
    const auto now = bytes.first(std::min(piece, bytes.size()));
    bytes = bytes.subspan(now.size());
    if (!now.empty() && ::send(theirs.get(), now.data(), now.size(), MSG_NOSIGNAL) < 0) break;
    link.receive();
  }
  if (!bytes.empty()) [[maybe_unused]]
    const ssize_t sent = ::send(theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  theirs.reset();
  while (link.receive()) {
  }
  link.drop();
  while (link.receive()) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span{data, size});
  if (size >= kHeaderBytes) {
    const auto head = bytes.first<kHeaderBytes>();
    if (const auto frame = parse_frame(head)) {
      const HeaderBytes again = encode(*frame);
      require(std::equal(again.begin(), again.end(), head.begin()));
    }
  }
  read_as_stream(bytes);
  return 0;
}
