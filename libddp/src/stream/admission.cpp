#include "stream/admission.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"

namespace ddp::stream {
namespace {

constexpr int kAcceptedAtOnce = 64;  // then existing connections take their turn
constexpr std::chrono::milliseconds kPause{100};
constexpr std::size_t kChunkBytes = 2048;

/// The error concerns only the one client, which is gone (accept(2)).
bool is_of_client(int error) {
  switch (error) {
    case EINTR:
    case ECONNABORTED:
    case EPERM:
    case EPROTO:
    case ENOPROTOOPT:
    case ENETDOWN:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EOPNOTSUPP: return true;
    default: return false;
  }
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

[[noreturn]] void refuse_answer() {
  throw Error{{.code = ErrorCode::peer_lost, .attempted = "answering a connection", .cause = "it cannot be answered"}};
}

}  // namespace

bool lacks_room(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// ---- accepting

Acceptor::Acceptor(EventLoop& loop, std::vector<base::UniqueFd> sockets, Accepted accepted, MakeRoom make_room)
    : loop_(loop), accepted_(std::move(accepted)), make_room_(std::move(make_room)), again_(loop, [this] {
        try {
          begin();
        } catch (const std::exception&) {  // out of memory
          pause();
        }
      }) {
  for (base::UniqueFd& socket : sockets) sockets_.emplace_back(std::move(socket));
  begin();
}

Acceptor::~Acceptor() { close(); }

void Acceptor::begin() {
  for (const base::UnsharedFd& socket : sockets_)
    loop_.watch(socket.get(), [this, fd = socket.get()] { accept_some(fd); });
  paused_ = false;
}

void Acceptor::pause() {
  for (const base::UnsharedFd& socket : sockets_) loop_.forget(socket.get());
  paused_ = true;
  again_.set(Deadline::after(kPause));
}

void Acceptor::close() {
  for (const base::UnsharedFd& socket : sockets_) loop_.forget(socket.get());
  sockets_.clear();
  again_.set(std::nullopt);
}

void Acceptor::accept_some(int listening) {
  for (int i = 0; i < kAcceptedAtOnce && !paused_ && is_open(); ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    base::UniqueFd socket{
        ::accept4(listening, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    const int error = errno;
    if (socket) {
      try {
        accepted_(std::move(socket), from);
      } catch (const std::exception& exception) {  // out of memory, among others
        base::log(base::LogLevel::debug, "dropped a connection: {}", exception.what());
      }
    } else if (would_block(error)) {
      return;
    } else if (lacks_room(error)) {
      if (!base::client_waits(listening)) return;
      if (!make_room_(listening, error)) return pause();
    } else if (!is_of_client(error)) {
      return pause();
    }
  }
}

// ---- conversations

Progress advance(int socket, Conversation& conversation, bool* heard) {
  std::array<std::byte, kChunkBytes> chunk;
  for (;;) {
    // smaller than any new socket's send buffer
    if (const Bytes answer = conversation.answer(); !answer.empty()) {
      const ssize_t sent = ::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent != static_cast<ssize_t>(answer.size())) refuse_answer();
    }
    if (conversation.proven()) return Progress::proven;
    const std::size_t due = conversation.due();
    if (due == 0) return Progress::waits;
    const ssize_t got = ::recv(socket, chunk.data(), std::min(due, chunk.size()), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_block(errno)) return Progress::open;
    if (got == 0) errno = 0;
    if (got <= 0) return Progress::gone;
    if (heard != nullptr) *heard = true;
    conversation.take(std::span{chunk}.first(static_cast<std::size_t>(got)));
  }
}

void converse(int socket, Conversation& conversation, Deadline deadline, const std::string& attempted) {
  for (;;) {
    const Progress progress = advance(socket, conversation);
    const int error = errno;
    if (progress == Progress::proven) return;
    if (progress == Progress::gone) {
      throw Error{{.code = ErrorCode::peer_lost,
                   .attempted = attempted,
                   .cause = error == 0 ? "the other side closed the connection" : base::errno_text(error),
                   .native = error == 0 ? "" : base::errno_name(error)}};
    }
    if (base::wait_for(socket, POLLIN, deadline)) continue;
    throw Error{{.code = ErrorCode::timeout,
                 .attempted = attempted,
                 .cause = "no answer before the deadline",
                 .native = base::errno_name(ETIMEDOUT)}};
  }
}

// ---- strangers

Admission::Admission(EventLoop& loop, std::vector<base::UniqueFd> listening, const StrangerLimits& limits,
                     Handlers handlers)
    : loop_(loop),
      limits_(limits),
      handlers_(std::move(handlers)),
      strangers_(limits),
      late_(loop, [this] { refuse_late(); }),
      acceptor_(
          loop, std::move(listening),
          [this](base::UniqueFd socket, const sockaddr_storage& from) { take_in(std::move(socket), from); },
          [this](int /*listening*/, int error) { return make_room(error); }) {}

void Admission::close() {
  acceptor_.close();
  while (!all_.empty()) remove(all_.begin()->first);
}

void Admission::take_in(base::UniqueFd socket, const sockaddr_storage& from) {
  Stranger stranger{.socket = base::UnsharedFd{std::move(socket)}, .from = from, .conversation = nullptr};
  stranger.conversation = handlers_.greet(stranger.socket.get());
  if (!stranger.conversation) return;
  const Strangers::Number number = ++last_;
  const Heard heard = hear(stranger);  // data that came along needs no place
  if (!heard.stays()) return finish(number, std::move(stranger), heard);
  if (strangers_.full())
    refuse(*strangers_.most_crowding(), Refusal::Reason::crowded, "others wait, and it has not authenticated");
  all_.emplace(number, std::move(stranger));
  try {
    strangers_.add(number, source_of(from));
    keep(number, heard);
  } catch (...) {
    remove(number);
    throw;
  }
}

bool Admission::make_room(int error) {
  const std::string cause = fmt::format("{} [{}]", base::errno_text(error), base::errno_name(error));
  if (strangers_.crowded()) {
    refuse(*strangers_.most_crowding(), Refusal::Reason::crowded, cause);
    return true;
  }
  if (handlers_.no_room) handlers_.no_room(cause);
  return false;
}

Admission::Heard Admission::hear(const Stranger& stranger) {
  Heard heard;
  try {
    heard.progress = advance(stranger.socket.get(), *stranger.conversation, &heard.any);
  } catch (const Error& error) {
    heard.refusal = error.cause();
  }
  return heard;
}

void Admission::read(Strangers::Number number) {
  const auto place = all_.find(number);
  if (place == all_.end()) return;
  try {
    const Heard heard = hear(place->second);
    if (heard.stays()) return keep(number, heard);
    finish(number, remove(number), heard);
  } catch (const std::exception& exception) {  // out of memory
    base::log(base::LogLevel::debug, "dropped a connection: {}", exception.what());
    if (all_.contains(number)) remove(number);
  }
}

void Admission::keep(Strangers::Number number, const Heard& heard) {
  Stranger& stranger = all_.at(number);
  if (heard.any) strangers_.heard(number);
  if (stranger.conversation->believed()) strangers_.believe(number);
  late_.set(strangers_.next_end());
  if (heard.progress == Progress::waits) {
    unwatch(stranger);
    if (handlers_.waits) handlers_.waits(number, *stranger.conversation);
  } else if (!stranger.watched) {
    loop_.watch(stranger.socket.get(), [this, number] { read(number); });
    stranger.watched = true;
  }
}

void Admission::finish(Strangers::Number number, Stranger stranger, const Heard& heard) {
  if (heard.refusal) return tell(number, stranger, Refusal::Reason::wrong, *heard.refusal);
  if (heard.progress != Progress::proven)
    return tell(number, stranger, Refusal::Reason::gone, "it disconnected before authenticating");
  handlers_.proven(std::move(stranger.socket), stranger.from, std::move(stranger.conversation));
}

void Admission::refuse(Strangers::Number number, Refusal::Reason reason, const std::string& why) {
  tell(number, remove(number), reason, why);
}

void Admission::tell(Strangers::Number number, const Stranger& stranger, Refusal::Reason reason,
                     const std::string& why) {
  if (handlers_.refused) {
    handlers_.refused({.reason = reason,
                       .text = why,
                       .socket = stranger.socket.get(),
                       .from = stranger.from,
                       .conversation = *stranger.conversation,
                       .number = number});
  }
  // a child that shares memory holds the socket until its execve(2)
  ::shutdown(stranger.socket.get(), SHUT_RDWR);
}

Admission::Stranger Admission::remove(Strangers::Number number) {
  auto node = all_.extract(number);
  strangers_.remove(number);
  unwatch(node.mapped());
  return std::move(node.mapped());
}

void Admission::unwatch(Stranger& stranger) {
  if (std::exchange(stranger.watched, false)) loop_.forget(stranger.socket.get());
}

Conversation* Admission::find(Strangers::Number number) {
  const auto place = all_.find(number);
  return place == all_.end() ? nullptr : place->second.conversation.get();
}

void Admission::resume(Strangers::Number number) { read(number); }

void Admission::refuse_late() {
  while (const auto late = strangers_.late()) {
    if (late->silent) {
      refuse(late->number, Refusal::Reason::silent, "it says nothing");
    } else {
      refuse(
          late->number, Refusal::Reason::late,
          fmt::format("it did not authenticate within {} s", std::chrono::duration<double>(limits_.patience).count()));
    }
  }
  late_.set(strangers_.next_end());
}

}  // namespace ddp::stream
