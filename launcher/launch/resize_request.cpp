#include "launch/resize_request.hpp"

#include <poll.h>

#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "base/socket.hpp"
#include "control/handshake.hpp"
#include "launch/job_file.hpp"
#include "launch/rendezvous_proof.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kConnectLimit{3};

[[noreturn]] void give_up_on(const ResizeRequest& request, ErrorCode code, std::string cause, std::string native = {},
                             std::string hint = {}) {
  throw Error{{.code = code,
               .attempted = fmt::format("resizing the job of '{}'", request.job_file),
               .cause = std::move(cause),
               .native = std::move(native),
               .hint = std::move(hint)}};
}

/// A frontend's job has a secret of its own; one whose ddpruns were started by hand asks for the user's proof.
control::Provers provers_of(const RendezvousPoint& point, const AgentSettings& settings,
                            const base::Environment& environment) {
  EnvironmentMap wanted = environment.variables();
  if (const auto phrase = settings.environment.find(kPhraseVariable); phrase != settings.environment.end())
    wanted.insert_or_assign(kPhraseVariable, phrase->second);
  else
    wanted.erase(kPhraseVariable);
  // Where the job lets anyone join, the user's own file is what says where it is.
  const auto user = std::make_shared<RendezvousProof>(base::Environment{std::move(wanted)}, true, base::host_name());
  return [job = control::job_secret_prover(point.secret),
          user](const control::Announcement& asked) -> std::shared_ptr<control::Prover> {
    return asked.method == control::ProofMethod::job_secret ? job : user->follower(asked);
  };
}

}  // namespace

std::string ask_for_resize(const ResizeRequest& request, const base::Environment& environment, Deadline deadline) {
  const std::optional<AgentSettings> settings = read_job_file(request.job_file);
  if (!settings) give_up_on(request, ErrorCode::not_found, "the job has just ended: there is no such file");
  const RendezvousPoint point = RendezvousPoint::decode(settings->point);
  const std::string stale = fmt::format("if that job is over, remove '{}'", request.job_file);
  std::optional<control::Connection> link;
  try {
    link = control::connect(point.addresses, point.port, provers_of(point, *settings, environment), deadline,
                            kConnectLimit);
  } catch (const Error& error) {
    give_up_on(request, error.code(), fmt::format("its ddprun on {} does not answer: {}", point.host, error.cause()),
               error.native(), stale);
  }
  link->send(control::ResizeAsked{
      .nodes = request.nodes, .spares = request.spares, .drain = request.drain, .host = base::host_name()});
  while (link->open() && base::wait_for(link->fd(), POLLIN, deadline)) {
    for (const control::Message& message : link->receive()) {
      const auto* answer = std::get_if<control::Finish>(&message);
      if (answer == nullptr) continue;
      if (answer->exit_status != 0) give_up_on(request, ErrorCode::conflict, answer->message);
      return answer->message;
    }
  }
  give_up_on(request, ErrorCode::unavailable, fmt::format("its ddprun on {} does not answer", point.host), {}, stale);
}

}  // namespace ddp::launcher
