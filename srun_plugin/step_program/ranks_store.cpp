#include "step_program/ranks_store.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "step_program/step_news.hpp"
#include "store_server/own_addresses.hpp"
#include "store_server/store_server.hpp"
#include "store_server/witness.hpp"

namespace ddp::srun_plugin {
namespace {

using store_server::Endpoint;
using store_server::PeerAddress;
using store_server::StoreServer;
using store_server::Witness;

constexpr std::uint8_t kPlaceVersion = 1;
// As for the store beside srun.
constexpr std::chrono::seconds kPlaceReachLimit{5};

bool is_here(const std::string& address) {
  const auto parsed = PeerAddress::parse(address);
  return parsed && store_server::OwnAddresses{}.contain(*parsed);
}

std::string place_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

Bytes encode(const StorePlace& place) {
  return std::move(base::ByteWriter{}.integer(kPlaceVersion).text(place.address).integer(place.port)).bytes();
}

StorePlace decode_place(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "place of the ranks' store");
  const auto version = reader.integer<std::uint8_t>();
  StorePlace place{.address = reader.text(), .port = 0};
  place.port = reader.integer<std::uint16_t>();
  reader.expect_end();
  const bool somewhere = PeerAddress::parse(place.address) && place.port != 0;
  if (version == kPlaceVersion && (place.address.empty() || somewhere)) return place;
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading where the ranks' store is",
               .cause = fmt::format("version {}, address '{}', port {}", version, place.address, place.port),
               .hint = "install one version of the plugin on all nodes"}};
}

void give_up_place(StepStore& store) { store.set_first(kPlaceKey, encode(StorePlace{})); }

struct RanksStore::Shared {
  Shared(RanksStoreOptions given, int answer_fd)
      : options(std::move(given)), answer(::fcntl(answer_fd, F_DUPFD_CLOEXEC, 3)) {
    if (!answer) throw base::system_error("looking for the ranks' store (fcntl)", errno);
  }

  void run() noexcept;
  StorePlace agree(StepStore& step);
  StorePlace own_place(StepStore& step);
  void pass_refusals_on(StepStore& step);

  const RanksStoreOptions options;
  base::UniqueFd answer;
  std::unique_ptr<StoreServer> server;
  std::unique_ptr<Witness> witness;
  std::mutex mutex;  ///< for what follows
  std::condition_variable changed;
  bool over = false;
};

/// Serves it, unless srun is on this host.
StorePlace RanksStore::Shared::own_place(StepStore& step) {
  if (is_here(options.srun_address)) return {};
  const auto own = Endpoint::own(step.fd());
  if (!own || own->address.is_loopback()) return {};
  server = std::make_unique<StoreServer>(store_server::StoreServerOptions{.key = options.key});
  return {.address = own->address.text(), .port = server->port()};
}

StorePlace RanksStore::Shared::agree(StepStore& step) {
  if (options.has_rank_0) {
    const StorePlace own = own_place(step);
    const StorePlace agreed = decode_place(step.set_first(kPlaceKey, encode(own)));
    if (agreed != own) server.reset();  // others have given up on this node
    return agreed;
  }
  if (!step.wait({kPlaceKey}, Deadline::after(options.patience))) give_up_place(step);
  return decode_place(step.get({kPlaceKey}).front());
}

/// On srun's standard error, as those of the store beside srun.
void RanksStore::Shared::pass_refusals_on(StepStore& step) {
  for (;;) {
    pollfd entries[] = {{.fd = server->refusals_fd(), .events = POLLIN, .revents = 0},
                        {.fd = step.fd(), .events = POLLIN, .revents = 0}};
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) return;
    if (entries[1].revents != 0) return;  // it says nothing unasked: the step has ended
    if (entries[0].revents == 0) continue;
    for (const std::string& line : server->take_refusals())
      tell_line(step, options.node, fmt::format("srun: ddp: warning: the step's store {}", line));
  }
}

void RanksStore::Shared::run() noexcept {
  const auto say = [this](const std::string& line) {
    base::write_line(answer.get(), line, base::kLinePatience);
    answer.reset();
  };
  StorePlace place;
  try {
    StepStore step(options.srun_address, options.srun_port);
    place = agree(step);
    if (place.address.empty()) {
      place = {.address = options.srun_address, .port = options.srun_port};
    } else if (server == nullptr) {
      const Deadline deadline = Deadline::after(kPlaceReachLimit);
      witness = std::make_unique<Witness>(place.address, place.port, options.key, deadline);
      store_server::check_served(place.address, place.port, deadline);
    }
    say(fmt::format("store {} {}", place.address, place.port));
    if (server != nullptr) {
      pass_refusals_on(step);
    } else if (witness != nullptr) {
      witness->wait();
    }
  } catch (const std::exception& error) {
    if (answer && !place.address.empty()) {
      say(fmt::format("store {} {} error {}", place.address, place.port, place_line(error.what())));
    } else if (answer) {
      say(fmt::format("error {}", place_line(error.what())));
    }
  }
  const std::lock_guard lock(mutex);
  over = true;
  changed.notify_all();
}

RanksStore::RanksStore(RanksStoreOptions options, int answer_fd)
    : shared_(std::make_shared<Shared>(std::move(options), answer_fd)) {
  base::start_thread([shared = shared_] { shared->run(); }).detach();
}

void RanksStore::wait() {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [this] { return shared_->over; });
}

}  // namespace ddp::srun_plugin
