// Carries the PMIx library's requests to other nodes out of its thread, which only posts, and the answers back.
#pragma once

#include <pmix_server.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// All local participants have entered a fence that spans several nodes.
struct FenceCall {
  std::uint64_t id;
  std::vector<int> ranks;  ///< global ranks; empty: all of the job
  Bytes data;              ///< this node's contribution
};

/// A local rank asks for what a rank of another node has put.
struct ModexCall {
  std::uint64_t id;
  int rank;
  std::string arrival{};  ///< only whether the rank has put this is asked (kvs::kArrivalOf); empty: all it has
  std::optional<Deadline> limit{};  ///< the asker's
};

/// The library's answer about what a local rank has put, for another node.
struct ModexAnswer {
  std::uint64_t id;  ///< as given to fetch_local()
  int status;        ///< a PMIx status
  Bytes data;
};

/// Which local ranks have not put a value.
struct RanksWithout {
  std::string name;
  std::vector<int> ranks;  ///< ascending
};

struct ModexEvents {
  std::vector<FenceCall> fences;
  std::vector<ModexCall> calls;
  std::vector<ModexAnswer> answers;
  std::vector<RanksWithout> without;
};

/// Thread-safe. Must outlive the PMIx library's use of it.
class ModexInbox {
 public:
  ModexInbox();
  ModexInbox(const ModexInbox&) = delete;
  ModexInbox& operator=(const ModexInbox&) = delete;
  ~ModexInbox();

  int fd() const { return event_.fd(); }  ///< readable when there is something to take
  ModexEvents take();

  /// Completes a fence or a call: gives the library's callback its data. Unknown ids are ignored.
  void answer(std::uint64_t id, int status, Bytes data);
  /// Completes all that is open with @p status, and drops what has not been taken: the attempt is over.
  void answer_all(int status);
  /// Asks the library for what a local rank has put; the result comes by take() as a ModexAnswer. It waits until the
  /// rank has put something.
  void fetch_local(const std::string& name_space, int rank, std::uint64_t id);

  /// Asks the library which of @p count local ranks from @p first on have not put the value @p name; the result comes
  /// by take() at once, as a RanksWithout.
  void find_without(const std::string& name_space, int first, int count, const std::string& name);

  /// When to call answer_overdue() next; nothing while no request has a time limit.
  std::optional<Deadline> next_deadline();
  /// Completes with PMIX_ERR_TIMEOUT what has waited longer than the rank wanted.
  void answer_overdue();

  /// From the library's thread. @p limit: the rank's PMIX_TIMEOUT, which the library leaves to the host for requests
  /// that it passes on.
  void post_fence(std::vector<int> ranks, std::span<const char> data, std::optional<Deadline> limit,
                  pmix_modex_cbfunc_t done, void* done_data);
  void post_call(int rank, std::optional<Deadline> limit, pmix_modex_cbfunc_t done, void* done_data,
                 std::string arrival = {});
  void post_answer(std::uint64_t id, int status, std::span<const char> data);

 private:
  struct Waiting {
    pmix_modex_cbfunc_t done;
    void* done_data;
    std::optional<Deadline> limit;
  };
  struct Fetch;
  struct Search;
  static void fetched(pmix_status_t status, char* data, std::size_t size, void* fetch_object);
  static void seen(pmix_status_t status, pmix_value_t* value, void* look_object);
  // With the mutex held:
  std::uint64_t wait_for_answer(std::optional<Deadline> limit, pmix_modex_cbfunc_t done, void* done_data);

  base::WakeEvent event_;
  std::mutex mutex_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, Waiting> waiting_;
  std::vector<std::unique_ptr<Fetch>> fetches_;    ///< open requests to the library
  std::vector<std::shared_ptr<Search>> searches_;  ///< the same
  ModexEvents events_;
};

}  // namespace ddp::launcher
