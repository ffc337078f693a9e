// The connecting side of the handshake: tries all addresses in turn, and says why none worked.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"
#include "control/handshake.hpp"
#include "stream/listening.hpp"

namespace ddp::launcher::control {
namespace {

// Longer than the other side takes when strangers crowd its port.
constexpr std::chrono::seconds kHandshakeLimit{15};
// A refusal does not change by waiting; but the connection may have been closed for another reason, and the port may
// have belonged to another program a moment ago.
constexpr int kRefusalsUntilFailure = 3;
constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{1000};

using stream::SessionCipher;

constexpr const char* kAttempted = "connecting to the job's coordinator";

/// Why an address refused: unavailable (it may accept later), protocol or conflict.
Error refusal(ErrorCode code, std::string cause, std::string hint = {}) {
  return Error{{.code = code, .attempted = kAttempted, .cause = std::move(cause), .hint = std::move(hint)}};
}

/// The last result for an address.
struct Finding {
  std::string address;
  ErrorCode code{};
  std::string text{};
  std::string hint{};
  int refusals = 0;  // in a row, other than "unavailable"
};

class Findings {
 public:
  /// @param cut_short by the overall deadline: then an earlier result says more
  void note(const std::string& address, const Error& error, bool cut_short) {
    auto found = std::find_if(all_.begin(), all_.end(), [&](const Finding& f) { return f.address == address; });
    const bool silent = error.code() == ErrorCode::timeout;
    if (found != all_.end() && silent && cut_short) return;
    if (found == all_.end()) found = all_.insert(found, {.address = address});
    const bool final = error.code() == ErrorCode::protocol || error.code() == ErrorCode::conflict;
    found->code = final ? error.code() : ErrorCode::unavailable;
    found->refusals = final ? found->refusals + 1 : 0;
    const std::string native = error.native().empty() ? "" : fmt::format(" [{}]", error.native());
    found->hint = error.hint();
    found->text = silent ? "no answer (a firewall?)" : error.cause() + native;
  }

  /// The coordinator does not accept this process, or no address has one. What does not speak the protocol may hold
  /// the port at one of several addresses.
  bool hopeless() const {
    const auto refuses = [](const Finding& f) { return f.refusals >= kRefusalsUntilFailure; };
    return std::any_of(all_.begin(), all_.end(),
                       [&](const Finding& f) { return refuses(f) && f.code == ErrorCode::conflict; }) ||
           (!all_.empty() && std::all_of(all_.begin(), all_.end(), refuses));
  }

  std::string describe() const {
    std::string text;
    for (const Finding& finding : all_)
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", finding.address, finding.text);
    return text;
  }

  [[noreturn]] void fail(std::uint16_t port) const {
    std::string cause = describe();
    std::string hint;
    ErrorCode code = ErrorCode::unavailable;
    for (const Finding& finding : all_) {
      if (finding.refusals == 0 || code == ErrorCode::conflict) continue;
      code = finding.code;
      hint = finding.hint;
    }
    if (cause.empty()) cause = "there was no time, or no address";
    throw Error{{.code = code,
                 .attempted = kAttempted,
                 .cause = std::move(cause),
                 .hint = hint.empty() ? usual_hint(code, port) : std::move(hint)}};
  }

 private:
  static std::string usual_hint(ErrorCode code, std::uint16_t port) {
    if (code == ErrorCode::protocol) {
      return "all nodes need the same version of libddp, and the port must be the one of the job's coordinator";
    }
    return fmt::format("has the job's first node been started, and can this host reach its port {}?", port);
  }

  std::vector<Finding> all_;
};

// TCP's simultaneous open: a connection to a free port of this host, in the range for outgoing connections, may connect
// to itself, and would keep the port from the coordinator.
bool met_itself(int fd) {
  if (stream::to_text(stream::local_address(fd)) != stream::to_text(stream::peer_address(fd))) return false;
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  return true;
}

SessionCipher shake_hands(int fd, const Provers& provers, Deadline deadline) {
  using Stage = stream::Handshake::Stage;
  stream::Handshake handshake(kProtocol, {}, provers);
  try {
    converse(fd, handshake, deadline, kAttempted);
  } catch (const Error& error) {
    const bool lost = error.code() == ErrorCode::peer_lost && error.native().empty();
    if (error.code() == ErrorCode::timeout && handshake.stage() == Stage::greeting)
      throw refusal(ErrorCode::unavailable, "it accepts the connection but does not answer");
    if (error.code() != ErrorCode::peer_lost) throw;
    if (handshake.stage() == Stage::greeting && lost)
      throw refusal(ErrorCode::unavailable, "it closed the connection without an answer");
    if (handshake.stage() == Stage::greeting) throw;
    if (handshake.stage() == Stage::details)
      throw refusal(ErrorCode::unavailable, "it closed the connection after its greeting");
    const stream::Prover& prover = *handshake.prover();
    throw refusal(ErrorCode::conflict, fmt::format("it does not accept {}", prover.what()), prover.hint());
  }
  return handshake.take_cipher();
}

std::optional<Connection> try_address(const addrinfo& address, std::uint16_t port, const Provers& provers,
                                      Deadline deadline, std::chrono::milliseconds connect_limit, Findings& findings) {
  const std::string name = stream::to_text(address);
  try {
    base::UniqueFd fd =
        base::connect_tcp(stream::numeric_host(address), port, earlier(deadline, Deadline::after(connect_limit)));
    if (met_itself(fd.get())) throw base::system_error(kAttempted, ECONNREFUSED);
    SessionCipher cipher = shake_hands(fd.get(), provers, earlier(deadline, Deadline::after(kHandshakeLimit)));
    return Connection{std::move(fd), name, std::move(cipher)};
  } catch (const Error& error) {
    findings.note(name, error, deadline.expired());
  }
  return std::nullopt;
}

std::optional<Connection> try_host(const std::string& host, std::uint16_t port, const Provers& provers,
                                   Deadline deadline, std::chrono::milliseconds connect_limit, Findings& findings) {
  try {
    const base::AddressList found = base::resolve(host, port, AI_ADDRCONFIG, kAttempted, deadline);
    for (const addrinfo* address = found.get(); address != nullptr; address = address->ai_next) {
      if (deadline.expired()) break;
      if (auto connection = try_address(*address, port, provers, deadline, connect_limit, findings)) return connection;
    }
  } catch (const Error& error) {
    findings.note(host, error, deadline.expired());
  }
  return std::nullopt;
}

}  // namespace

Connection connect(const std::vector<std::string>& addresses, std::uint16_t port, const Secret& secret,
                   Deadline deadline, std::chrono::milliseconds connect_limit) {
  return connect(addresses, port, job_secret_provers(secret), deadline, connect_limit);
}

Connection connect(const std::vector<std::string>& addresses, std::uint16_t port, const Provers& provers,
                   Deadline deadline, std::chrono::milliseconds connect_limit,
                   const std::function<void(std::string cause)>& tried) {
  Findings findings;
  for (std::chrono::milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    for (const std::string& host : addresses) {
      if (deadline.expired()) break;
      if (auto connection = try_host(host, port, provers, deadline, connect_limit, findings))
        return *std::move(connection);
    }
    if (addresses.empty() || findings.hopeless() || deadline.expired()) findings.fail(port);
    if (tried) tried(findings.describe());
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
  }
}

}  // namespace ddp::launcher::control
