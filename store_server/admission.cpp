#include "store_server/admission.hpp"

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::store_server {

Admission::Admission(const AdmissionRules& rules)
    : all_(rules.allowed.empty() && !rules.by_proof), loopback_(rules.loopback) {
  for (const std::string& text : rules.allowed) {
    const auto address = PeerAddress::parse(text);
    if (!address) {
      throw Error{{.code = ErrorCode::invalid_argument,
                   .attempted = "restricting the clients of the TCPStore server",
                   .cause = fmt::format("'{}' is not a numeric IPv4 or IPv6 address", text),
                   .native = {},
                   .ranks = {},
                   .hint = {}}};
    }
    admitted_.insert(*address);
  }
}

bool Admission::admits(const PeerAddress& peer) const {
  return all_ || (loopback_ && peer.is_loopback()) || admitted_.contains(peer);
}

}  // namespace ddp::store_server
