// Hands fences and direct-modex questions from the PMIx library's thread to the launcher's, and answers to the library.
#include "pmix_server/modex_inbox.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "kvs/pmix_library.hpp"
#include "pmix_server/server_functions.hpp"

namespace ddp::launcher {
namespace {

Bytes copy(std::span<const char> data) {
  const auto bytes = std::as_bytes(data);
  return {bytes.begin(), bytes.end()};
}

/// pmix_release_cbfunc_t: the library has read an answer's data.
void release_data(void* data) { delete static_cast<Bytes*>(data); }

}  // namespace

/// A request to the library. Owned by the inbox, which frees those that are never answered.
struct ModexInbox::Fetch {
  ModexInbox* inbox;
  std::uint64_t id;
};

/// For a value of local ranks.
struct ModexInbox::Search {
  struct Look {
    Search* search;
    int rank;
  };
  ModexInbox* inbox;
  std::string name;
  kvs::InfoList info{};
  std::vector<Look> looks{};
  std::size_t left = 0;
  std::vector<int> without{};
};

ModexInbox::ModexInbox() = default;
ModexInbox::~ModexInbox() = default;

ModexEvents ModexInbox::take() {
  const std::lock_guard lock{mutex_};
  event_.clear();
  return std::exchange(events_, {});
}

void ModexInbox::answer(std::uint64_t id, int status, Bytes data) {
  auto owned = std::make_unique<Bytes>(std::move(data));
  Waiting waiting{};
  {
    const std::lock_guard lock{mutex_};
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return;
    waiting = found->second;
    waiting_.erase(found);
  }
  // The callback keeps the pointer and reads the bytes later, on the library's thread, which then calls the release
  // function. No bytes are still a pointer: to libraries, null means that the data has been registered in another way.
  owned->reserve(1);
  Bytes* const kept = owned.release();
  waiting.done(status, reinterpret_cast<const char*>(kept->data()), kept->size(), waiting.done_data, release_data,
               kept);
}

void ModexInbox::answer_all(int status) {
  std::map<std::uint64_t, Waiting> waiting;
  {
    const std::lock_guard lock{mutex_};
    waiting.swap(waiting_);
    events_ = {};
  }
  for (const auto& entry : waiting) entry.second.done(status, nullptr, 0, entry.second.done_data, nullptr, nullptr);
}

void ModexInbox::fetch_local(const std::string& name_space, int rank, std::uint64_t id) {
  Fetch* fetch = nullptr;
  {
    const std::lock_guard lock{mutex_};
    fetch = fetches_.emplace_back(std::make_unique<Fetch>(Fetch{.inbox = this, .id = id})).get();
  }
  const pmix_proc_t proc = kvs::make_proc(name_space, static_cast<pmix_rank_t>(rank));
  const pmix_status_t status = pmix_server().dmodex_request(&proc, fetched, fetch);
  if (status != PMIX_SUCCESS) fetched(status, nullptr, 0, fetch);
}

void ModexInbox::fetched(pmix_status_t status, char* data, std::size_t size, void* fetch_object) {
  auto* const fetch = static_cast<Fetch*>(fetch_object);
  ModexInbox& inbox = *fetch->inbox;
  try {
    inbox.post_answer(fetch->id, status, data == nullptr ? std::span<const char>{} : std::span<const char>{data, size});
  } catch (...) {  // no memory: the requester's own time limit ends the request
  }
  const std::lock_guard lock{inbox.mutex_};
  std::erase_if(inbox.fetches_, [&](const auto& each) { return each.get() == fetch; });
}

void ModexInbox::find_without(const std::string& name_space, int first, int count, const std::string& name) {
  const auto search = std::make_shared<Search>(Search{.inbox = this, .name = name});
  search->info.boolean(PMIX_OPTIONAL, true);  // what the library has: it asks no rank, and waits for none
  for (int rank = first; rank < first + count; ++rank) search->looks.push_back({.search = search.get(), .rank = rank});
  search->left = search->looks.size();
  search->without.reserve(search->left);
  {
    const std::lock_guard lock{mutex_};
    searches_.push_back(search);
  }
  for (Search::Look& look : search->looks) {
    const pmix_proc_t proc = kvs::make_proc(name_space, static_cast<pmix_rank_t>(look.rank));
    const pmix_status_t status =
        kvs::pmix().get_nb(&proc, search->name.c_str(), search->info.data(), search->info.size(), seen, &look);
    if (status != PMIX_SUCCESS) seen(status, nullptr, &look);
  }
}

void ModexInbox::seen(pmix_status_t status, pmix_value_t* /*value*/, void* look_object) {
  const auto& look = *static_cast<Search::Look*>(look_object);
  Search& search = *look.search;
  ModexInbox& inbox = *search.inbox;
  const std::lock_guard lock{inbox.mutex_};
  if (status != PMIX_SUCCESS) search.without.push_back(look.rank);
  if (--search.left > 0) return;
  try {
    std::sort(search.without.begin(), search.without.end());
    inbox.events_.without.push_back({.name = std::move(search.name), .ranks = std::move(search.without)});
    inbox.event_.ring();
  } catch (...) {  // no memory: the asker's own time limit ends the question
  }
  std::erase_if(inbox.searches_, [&](const auto& each) { return each.get() == &search; });
}

std::optional<Deadline> ModexInbox::next_deadline() {
  const std::lock_guard lock{mutex_};
  std::optional<Deadline> next;
  for (const auto& entry : waiting_) {
    const auto& limit = entry.second.limit;
    if (limit && (!next || *limit < *next)) next = limit;
  }
  return next;
}

void ModexInbox::answer_overdue() {
  std::vector<Waiting> overdue;
  {
    const std::lock_guard lock{mutex_};
    std::erase_if(waiting_, [&](const auto& entry) {
      const bool late = entry.second.limit && entry.second.limit->expired();
      if (late) overdue.push_back(entry.second);
      return late;
    });
  }
  for (const Waiting& each : overdue) each.done(PMIX_ERR_TIMEOUT, nullptr, 0, each.done_data, nullptr, nullptr);
}

void ModexInbox::post_fence(std::vector<int> ranks, std::span<const char> data, std::optional<Deadline> limit,
                            pmix_modex_cbfunc_t done, void* done_data) {
  FenceCall call{.id = 0, .ranks = std::move(ranks), .data = copy(data)};
  const std::lock_guard lock{mutex_};
  events_.fences.reserve(events_.fences.size() + 1);  // so that what follows happens as a whole or not at all
  call.id = wait_for_answer(limit, done, done_data);
  events_.fences.push_back(std::move(call));
  event_.ring();
}

void ModexInbox::post_call(int rank, std::optional<Deadline> limit, pmix_modex_cbfunc_t done, void* done_data,
                           std::string arrival) {
  const std::lock_guard lock{mutex_};
  events_.calls.reserve(events_.calls.size() + 1);
  events_.calls.push_back(
      {.id = wait_for_answer(limit, done, done_data), .rank = rank, .arrival = std::move(arrival), .limit = limit});
  event_.ring();
}

void ModexInbox::post_answer(std::uint64_t id, int status, std::span<const char> data) {
  ModexAnswer answer{.id = id, .status = status, .data = copy(data)};
  const std::lock_guard lock{mutex_};
  events_.answers.push_back(std::move(answer));
  event_.ring();
}

std::uint64_t ModexInbox::wait_for_answer(std::optional<Deadline> limit, pmix_modex_cbfunc_t done, void* done_data) {
  waiting_.emplace(next_id_, Waiting{.done = done, .done_data = done_data, .limit = limit});
  return next_id_++;
}

}  // namespace ddp::launcher
