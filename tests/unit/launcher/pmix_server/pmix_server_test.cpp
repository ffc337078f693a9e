// A PMIx server's thread that answers, one that is held up, and one that goes on.
#include <pmix_server.h>

#include "kvs/pmix_library.hpp"
#include "pmix_server/pmix_server.hpp"

namespace ddp::launcher {
namespace {

bool answers(const ServerPulse& pulse) {
  for (const Deadline limit = Deadline::after(20s); pulse.silent_since(); std::this_thread::sleep_for(1ms)) {
    if (limit.expired()) return false;
  }
  return true;
}

/// Holds the library's thread until it is let go.
struct Hold {
  std::promise<void> reached, let_go;
};

void hold(pmix_status_t, void* object) {
  auto& hold = *static_cast<Hold*>(object);
  hold.reached.set_value();
  hold.let_go.get_future().wait();
}

/// 0 if all is as it should be.
int watch_a_server() {
  PmixServer server(testing::TempDir());
  ServerPulse& pulse = server.pulse();
  if (pulse.silent_since()) return 1;
  pulse.ask();
  if (!answers(pulse)) return 2;

  Hold held;
  const pmix_proc_t nobody = kvs::make_proc("nobody", 0);
  PMIx_server_deregister_client(&nobody, hold, &held);
  held.reached.get_future().wait();
  pulse.ask();
  const auto since = pulse.silent_since();
  std::this_thread::sleep_for(20ms);
  pulse.ask();  // the same question
  const bool same = since && pulse.silent_since() == since;
  held.let_go.set_value();
  if (!same) return 3;
  if (!answers(pulse)) return 4;
  pulse.ask();
  return answers(pulse) ? 0 : 5;
}

/// In a process of its own: the server is one per process.
TEST(ServerPulseDeathTest, TellsSinceWhenTheServersThreadIsSilent) {
  EXPECT_EXIT(::_exit(watch_a_server()), testing::ExitedWithCode(0), "");
}

}  // namespace

}  // namespace ddp::launcher
