// The door of a listener: accepts connections, hears what must be said, and hands on those that have proven to belong.
// One that is silent, slow, wrong or one too many is closed, and holds up no other.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>

#include "base/unique_fd.hpp"
#include "stream/event_loop.hpp"
#include "stream/strangers.hpp"

namespace ddp::stream {

/// Whether accept(2), socket(2) and the like failed for want of descriptors or memory.
bool lacks_room(int error) noexcept;

/// Listening sockets in an event loop. Where no descriptor or memory is left it pauses for 100 ms at a time, so that a
/// client that waits does not wake the loop all the time. Forked children do not keep the sockets.
class Acceptor {
 public:
  /// @param socket non-blocking. An exception costs the connection only.
  using Accepted = std::function<void(base::UniqueFd socket, const sockaddr_storage& from)>;
  /// Called for a client that waits at @p listening while there is no room for it: @return whether there is now.
  using MakeRoom = std::function<bool(int listening, int error)>;

  /// @param loop outlives the object. Throws Error(system).
  Acceptor(EventLoop& loop, std::vector<base::UniqueFd> sockets, Accepted accepted, MakeRoom make_room);
  ~Acceptor();

  void close();
  bool is_open() const { return !sockets_.empty(); }
  const std::vector<base::UnsharedFd>& sockets() const { return sockets_; }

 private:
  void begin();
  void pause();
  void accept_some(int listening);

  EventLoop& loop_;
  std::vector<base::UnsharedFd> sockets_;
  Accepted accepted_;
  MakeRoom make_room_;
  Timer again_;
  bool paused_ = true;
};

/// One side of what two ends say to each other before either is believed. Does no input or output itself.
class Conversation {
 public:
  virtual ~Conversation() = default;
  /// What is to be sent now; each byte once.
  virtual Bytes answer() { return {}; }
  /// How many bytes are to come next, of which no more may be read; 0: it waits for something else. Throws Error where
  /// the other end is not to be believed.
  virtual std::size_t due() const = 0;
  /// The next bytes, at most due(). Throws Error as due().
  virtual void take(std::span<const std::byte> bytes) = 0;
  /// The other end has said what a stranger rarely says.
  virtual bool believed() const { return false; }
  /// It is over, and the other end belongs here.
  virtual bool proven() const = 0;
};

enum class Progress : std::uint8_t { open, waits, proven, gone };

/// As far as it goes on a non-blocking socket. @p heard is set when a byte has come. When the other end is gone errno
/// says why; 0: it has closed the connection. Throws Error.
Progress advance(int socket, Conversation& conversation, bool* heard = nullptr);
/// Until it is proven. Throws Error: as Conversation, peer_lost when the other end closes, timeout at @p deadline.
void converse(int socket, Conversation& conversation, Deadline deadline, const std::string& attempted);

/// Why a connection was given up.
struct Refusal {
  enum class Reason : std::uint8_t { crowded, silent, late, gone, wrong };
  Reason reason = Reason::wrong;
  std::string text;  ///< "it says nothing"
  int socket = -1;   ///< closed when the handler returns
  const sockaddr_storage& from;
  Conversation& conversation;
  Strangers::Number number = 0;
};

/// Not thread-safe; its handlers are called from the loop.
class Admission {
 public:
  struct Handlers {
    /// For a connection that has come; null: it is hung up on.
    std::function<std::unique_ptr<Conversation>(int socket)> greet;
    std::function<void(base::UnsharedFd socket, const sockaddr_storage& from, std::unique_ptr<Conversation>)> proven;
    std::function<void(const Refusal&)> refused = {};
    /// Its conversation waits: resume() goes on with it.
    std::function<void(Strangers::Number, Conversation&)> waits = {};
    /// A connection has to wait, as there is no room for it.
    std::function<void(const std::string& cause)> no_room = {};
  };

  Admission(EventLoop& loop, std::vector<base::UniqueFd> listening, const StrangerLimits& limits, Handlers handlers);
  ~Admission() { close(); }
  Admission& operator=(Admission&&) = delete;

  /// Who waits; null: it is gone.
  Conversation* find(Strangers::Number number);
  void resume(Strangers::Number number);
  /// So many may be unproven from now on, instead of StrangerLimits::most.
  void allow(std::size_t most) { strangers_.allow(most); }
  /// Who is unproven.
  std::size_t size() const { return strangers_.size(); }
  const std::vector<base::UnsharedFd>& sockets() const { return acceptor_.sockets(); }
  /// Hangs up on all, and listens no more.
  void close();

 private:
  struct Stranger {
    base::UnsharedFd socket;
    sockaddr_storage from;
    std::unique_ptr<Conversation> conversation;
    bool watched = false;
  };

  struct Heard {
    Progress progress = Progress::gone;
    bool any = false;
    std::optional<std::string> refusal = {};
    bool stays() const { return !refusal && (progress == Progress::open || progress == Progress::waits); }
  };

  void take_in(base::UniqueFd socket, const sockaddr_storage& from);
  bool make_room(int error);
  void read(Strangers::Number number);
  static Heard hear(const Stranger& stranger);
  void keep(Strangers::Number number, const Heard& heard);
  void finish(Strangers::Number number, Stranger stranger, const Heard& heard);
  void refuse(Strangers::Number number, Refusal::Reason reason, const std::string& why);
  void tell(Strangers::Number number, const Stranger& stranger, Refusal::Reason reason, const std::string& why);
  Stranger remove(Strangers::Number number);
  void unwatch(Stranger& stranger);
  void refuse_late();

  EventLoop& loop_;
  StrangerLimits limits_;
  Handlers handlers_;
  Strangers strangers_;
  std::map<Strangers::Number, Stranger> all_;
  Strangers::Number last_ = 0;
  Timer late_;
  Acceptor acceptor_;
};

}  // namespace ddp::stream
