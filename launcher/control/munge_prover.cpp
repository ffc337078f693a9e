#include "control/munge_prover.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::launcher::control {

void MungeProver::check(std::span<const std::byte> proof, const Statement& statement) {
  const Munge::Opened opened = munge_.open(proof);
  std::string cause;
  if (opened.user != munge_.user()) {
    cause = fmt::format("it is a process of user {}, not of user {}", opened.user, munge_.user());
  } else if (!std::ranges::equal(opened.payload, statement)) {
    cause = "its munge credential was made for something else";
  }
  if (cause.empty()) return;
  throw Error{{.code = ErrorCode::conflict,
               .attempted = "checking who is at the other end",
               .cause = std::move(cause),
               .hint = hint()}};
}

}  // namespace ddp::launcher::control
