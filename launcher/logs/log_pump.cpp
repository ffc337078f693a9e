#include "logs/log_pump.hpp"

#include <exception>
#include <thread>
#include <utility>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "logs/pump_core.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kPatienceOnDestruction{1};

}  // namespace

struct LogPump::Impl {
  explicit Impl(LogPumpOptions options) : core(std::make_shared<PumpCore>(std::move(options))) {}
  std::shared_ptr<PumpCore> core;
  std::thread thread;
  bool finished = false;
};

LogPump::LogPump(LogPumpOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

LogPump::~LogPump() {
  try {
    finish(kPatienceOnDestruction);
  } catch (const std::exception& error) {
    base::log(base::LogLevel::error, "ending the workers' logs: {}", error.what());
  }
}

base::UniqueFd LogPump::add(const StreamRoute& route) { return impl_->core->add(route); }

void LogPump::start() {
  impl_->core->set_running();
  impl_->thread = base::start_thread([core = impl_->core] { core->run(); });
}

std::string LogPump::tail(int local_rank) { return impl_->core->tail(local_rank); }

void LogPump::finish(std::chrono::milliseconds patience) {
  finish([patience] { return patience; });
}

void LogPump::finish(const Patience& patience) {
  if (std::exchange(impl_->finished, true)) return;
  if (!impl_->thread.joinable()) {
    impl_->core->close_all();
    return;
  }
  if (impl_->core->finish(patience)) {
    impl_->thread.join();
  } else {
    impl_->thread.detach();
    base::log(base::LogLevel::warning, "the workers' last output may be missing: a file or terminal does not answer");
  }
}

}  // namespace ddp::launcher
