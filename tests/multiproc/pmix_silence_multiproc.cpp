// A rank whose PMIx server stops answering: its fence ends at the deadline and blames the server, whether it was
// putting its values there or already waited for others.
#include <pmix_server.h>
#include <poll.h>

#include <iostream>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "kvs/pmix_library.hpp"
#include "kvs/pmix_session.hpp"
#include "kvs/pmix_store.hpp"
#include "pmix_server/job_namespace.hpp"
#include "pmix_server/pmix_server.hpp"

namespace ddp {
namespace {

constexpr auto kGenerous = 30s;

struct PipeEnds {
  base::UniqueFd reading, writing;
};

PipeEnds make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) ::_exit(90);
  return {base::UniqueFd{ends[0]}, base::UniqueFd{ends[1]}};
}

void send(const base::UniqueFd& pipe, const std::string& text) {
  if (::write(pipe.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) ::_exit(91);
}

/// One line, without its end; ends the process where none comes.
std::string next_line(const base::UniqueFd& pipe) {
  std::string line;
  const Deadline limit = Deadline::after(kGenerous);
  for (char letter = 0; base::wait_for(pipe.get(), POLLIN, limit) && ::read(pipe.get(), &letter, 1) == 1;) {
    if (letter == '\n') return line;
    line += letter;
  }
  ::_exit(92);
}

/// Rank 0, in its own process: 0 where the fence said what it should, which is on standard error then.
int be_rank(const base::UniqueFd& orders, const base::UniqueFd& answers, std::chrono::milliseconds limit) {
  for (std::string line = next_line(orders); !line.empty(); line = next_line(orders)) {
    const auto equals = line.find('=');
    ::setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 1);
  }
  kvs::PmixStore store(std::make_unique<kvs::PmixSession>(base::Environment::process(), Deadline::after(kGenerous)));
  store.put("key", std::as_bytes(std::span{"value"}));
  send(answers, "joined\n");
  next_line(orders);
  const auto began = Deadline::Clock::now();
  try {
    send(answers, "enters\n");
    store.fence(Deadline::after(limit));
  } catch (const Error& error) {
    std::cerr << to_string(error.code()) << ": " << error.what() << '\n';
    const bool right = error.code() == ErrorCode::timeout && error.ranks().empty();
    ::_exit(right && Deadline::Clock::now() - began < limit + kGenerous ? 0 : 1);
  }
  return 2;
}

struct Hold {
  std::promise<void> reached, let_go;
};

void hold(pmix_status_t, void* object) {
  auto& hold = *static_cast<Hold*>(object);
  hold.reached.set_value();
  hold.let_go.get_future().wait();
}

/// The server of rank 0, and of a rank 1 that never comes. @param before the fence begins
int be_server(bool before, std::chrono::milliseconds limit) {
  PipeEnds orders = make_pipe();
  PipeEnds answers = make_pipe();
  const pid_t rank = ::fork();  // before there is a library in this process
  if (rank == 0) {
    orders.writing.reset();
    answers.reading.reset();
    ::_exit(be_rank(orders.reading, answers.writing, limit));
  }
  launcher::PmixServer server(testing::TempDir());
  const launcher::JobNamespace job(server, {.name_space = launcher::make_namespace_name("here", 0),
                                            .nodes = {{.host = "here", .num_ranks = 2}},
                                            .node_rank = 0});
  for (const auto& [name, value] : job.client_environment(0)) send(orders.writing, name + "=" + value + "\n");
  send(orders.writing, "\n");
  next_line(answers.reading);
  Hold held;
  const auto begin_hold = [&held] {
    const pmix_proc_t nobody = kvs::make_proc("nobody", 0);
    PMIx_server_deregister_client(&nobody, hold, &held);
    held.reached.get_future().wait();
  };
  if (before) begin_hold();
  send(orders.writing, "go\n");
  next_line(answers.reading);
  if (!before) {
    std::this_thread::sleep_for(limit / 10);  // most often, it waits for rank 1 then
    begin_hold();
  }
  int status = -1;
  ::waitpid(rank, &status, 0);
  held.let_go.set_value();
  server.abandon();  // its client has died
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

// In processes of their own: a server is one per process.
TEST(PmixSilenceDeathTest, AServerThatTakesInNothingIsBlamedAtTheDeadline) {
  EXPECT_EXIT(::_exit(be_server(true, 500ms)), testing::ExitedWithCode(0),
              "timeout: fence 1 of 2 ranks.*the PMIx server of this node has not accepted .*PMIx_Commit");
}

TEST(PmixSilenceDeathTest, AServerThatStopsDuringAFenceIsBlamedAtTheDeadline) {
  EXPECT_EXIT(::_exit(be_server(false, 2s)), testing::ExitedWithCode(0),
              "timeout: fence 1 of 2 ranks.*the PMIx server of this node");
}

}  // namespace
}  // namespace ddp
