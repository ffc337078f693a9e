#include "kvs/pmix_store.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/message.hpp"
#include "kvs/pmix_library.hpp"
#include "kvs/store_contract.hpp"

namespace ddp::kvs {
namespace {

/// Result of a PMIx callback for the waiting thread. Callbacks run on libpmix's thread and only post here; shared
/// ownership keeps the mailbox alive for a callback that comes after the waiter has given up.
template <class Result>
class Mailbox {
 public:
  void post(Result result) {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    arrived_.notify_all();
  }
  std::optional<Result> wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    arrived_.wait_until(lock, deadline.when(), [&] { return result_.has_value(); });
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::optional<Result> result_;
};

struct Answer {
  pmix_status_t status;
  Bytes value{};
};

/// A running call: where its callback posts, and the arguments that libpmix may read until then.
template <class Result>
struct Call {
  std::shared_ptr<Mailbox<Result>> mailbox;
  InfoList info{};
  std::string key{};
};

void on_fence(pmix_status_t status, void* closure) {
  const std::unique_ptr<Call<pmix_status_t>> call(static_cast<Call<pmix_status_t>*>(closure));
  call->mailbox->post(status);
}

Answer make_answer(pmix_status_t status, const pmix_value_t* value) {
  if (status != PMIX_SUCCESS) return {.status = status};
  if (value == nullptr || value->type != PMIX_BYTE_OBJECT) return {.status = PMIX_ERR_TYPE_MISMATCH};
  const auto* first = reinterpret_cast<const std::byte*>(value->data.bo.bytes);
  return {.status = PMIX_SUCCESS, .value = Bytes(first, first + value->data.bo.size)};
}

void on_get(pmix_status_t status, pmix_value_t* value, void* closure) {
  const std::unique_ptr<Call<Answer>> call(static_cast<Call<Answer>*>(closure));
  call->mailbox->post(make_answer(status, value));
}

std::string batch_key(unsigned fence) { return fmt::format("ddp.fence.{}", fence); }

std::string node_key(unsigned store, std::string_view key) { return fmt::format("ddp.{}.node.{}", store, key); }

/// Stores and fences of this process, which PMIx counts together: ranks meet in their n-th fence, whatever store it is
/// of. So after a fence each rank has put its batch, and asking for it ends.
std::atomic<unsigned> stores_made{0};
std::atomic<unsigned> fences_begun{0};

/// The values that a rank has put between two fences.
struct FenceBatch {
  std::uint32_t store = 0;  ///< among those of the process
  std::map<std::string, Bytes, std::less<>> values{};
};
constexpr auto description(const FenceBatch*) {
  return base::describe({"rank's values in the PMIx store"}, base::fields<&FenceBatch::store, &FenceBatch::values>());
}

/// A value to send to this node's server.
struct Publication {
  pmix_scope_t
      scope;  ///< PMIX_GLOBAL: a fence carries it to all nodes; PMIX_LOCAL: it stays with the server of this node
  std::string key;
  Bytes value;
};

void put_and_commit(std::vector<Publication>& publications, const std::string& attempted) {
  for (Publication& each : publications) {
    pmix_value_t holder{};
    holder.type = PMIX_BYTE_OBJECT;
    holder.data.bo.bytes = reinterpret_cast<char*>(each.value.data());  // PMIx_Put copies it
    holder.data.bo.size = each.value.size();
    if (const pmix_status_t status = pmix().put(each.scope, each.key.c_str(), &holder); status != PMIX_SUCCESS) {
      throw pmix_error(ErrorCode::unavailable, attempted, "PMIx_Put failed", status);
    }
  }
  if (const pmix_status_t status = pmix().commit(); status != PMIX_SUCCESS) {
    throw pmix_error(ErrorCode::unavailable, attempted, "PMIx_Commit failed", status);
  }
}

/// The error blames no rank.
Error server_silent(const std::string& attempted, std::string cause) {
  return Error{{.code = ErrorCode::timeout,
                .attempted = attempted,
                .cause = std::move(cause),
                .hint =
                    "the launcher's process on this node (ddprun, slurmstepd, prted) hangs or is stopped: look at its "
                    "log, and whether other processes hold connections to it"}};
}

/// PMIx_Put and PMIx_Commit wait for the server, without a deadline of their own.
void publish(std::vector<Publication> publications, const std::string& attempted, Deadline deadline) {
  const auto done = base::abandonable_call(
      [publications = std::move(publications), attempted]() mutable {
        put_and_commit(publications, attempted);
        return true;
      },
      deadline);
  if (done) return;
  throw server_silent(
      attempted, "the PMIx server of this node has not accepted this rank's values (PMIx_Commit) before the deadline");
}

/// Where a get looks for its answer.
enum class Reach {
  own_server,  ///< PMIX_IMMEDIATE: the server of this node, which does not ask other nodes
  anywhere,    ///< the rank's own server, which waits up to PMIX_TIMEOUT for the key to appear
  arrival,     ///< the same, where PMIX_SUCCESS or kHasArrived is all that matters
};

std::shared_ptr<Mailbox<Answer>> start_get(const std::string& name_space, int rank, const std::string& key, Reach reach,
                                           Deadline deadline) {
  auto mailbox = std::make_shared<Mailbox<Answer>>();
  const pmix_proc_t proc = make_proc(name_space, static_cast<pmix_rank_t>(rank));
  auto call = std::make_unique<Call<Answer>>(Call<Answer>{.mailbox = mailbox, .key = key});
  const int timeout_s = deadline.poll_timeout_ms() / 1000 + 1;  // rounded up: our own deadline comes first
  switch (reach) {
    case Reach::own_server: call->info.boolean(PMIX_IMMEDIATE, true); break;
    case Reach::anywhere: call->info.integer(PMIX_TIMEOUT, timeout_s); break;
    case Reach::arrival: call->info.integer(PMIX_TIMEOUT, timeout_s).text(kArrivalOf, key); break;
  }
  const pmix_status_t status =
      pmix().get_nb(&proc, call->key.c_str(), call->info.data(), call->info.size(), on_get, call.get());
  if (status == PMIX_SUCCESS) {
    call.release();  // on_get now owns it
  } else {
    mailbox->post(Answer{.status = status});
  }
  return mailbox;
}

/// Reads this process's own copy of the last fence (PMIX_OPTIONAL): local, so it needs no deadline and, unlike
/// PMIx_Get_nb, no turn of libpmix's thread.
Answer own_copy(const std::string& name_space, int rank, const std::string& key) {
  const pmix_proc_t proc = make_proc(name_space, static_cast<pmix_rank_t>(rank));
  InfoList info;
  info.boolean(PMIX_OPTIONAL, true);
  PmixValue value;
  const pmix_status_t status = pmix().get(&proc, key.c_str(), info.data(), info.size(), value.out());
  return make_answer(status, value.get());
}

}  // namespace

PmixStore::PmixStore(std::unique_ptr<PmixSession> session) : session_(std::move(session)) { number_ = stores_made++; }

void PmixStore::put(std::string_view key, std::span<const std::byte> value) {
  check_key(key);
  check_usable(!broken_, fmt::format("putting '{}' into the PMIx store", key));
  pending_[std::string(key)] = Bytes(value.begin(), value.end());
}

void PmixStore::fence(Deadline deadline) {
  const std::string attempted = fmt::format("fence {} of {} ranks over PMIx", fences_.size() + 1, world_size());
  check_usable(!broken_, attempted);
  broken_ = true;  // until proven otherwise
  const unsigned fence = ++fences_begun;
  fences_.push_back(fence);
  FenceBatch own{.store = number_, .values = std::exchange(pending_, {})};
  std::vector<Publication> publications;
  for (auto& [key, value] : std::exchange(pending_on_node_, {})) {
    publications.push_back({.scope = PMIX_LOCAL, .key = node_key(number_, key), .value = std::move(value)});
  }
  publications.push_back({.scope = PMIX_GLOBAL, .key = batch_key(fence), .value = base::encode(own)});
  publish(std::move(publications), attempted, deadline);
  known_[{rank(), fence}] = std::move(own.values);

  const pmix_proc_t everyone = make_proc(session_->name_space(), PMIX_RANK_WILDCARD);
  auto mailbox = std::make_shared<Mailbox<pmix_status_t>>();
  auto call = std::make_unique<Call<pmix_status_t>>(Call<pmix_status_t>{.mailbox = mailbox});
  call->info.boolean(PMIX_COLLECT_DATA, true);
  pmix_status_t status = pmix().fence_nb(&everyone, 1, call->info.data(), call->info.size(), on_fence, call.get());
  if (status == PMIX_SUCCESS) {
    call.release();  // on_fence now owns it
    const auto answer = mailbox->wait(before_reserve(deadline));
    if (!answer) {
      const std::vector<int> absent = find_absent(attempted, deadline);
      // the last ranks may have arrived meanwhile
      if (const auto late = mailbox->wait(absent.empty() ? deadline : Deadline::after(std::chrono::seconds(0)))) {
        status = *late;
      } else {
        throw fence_timeout(attempted, absent, world_size());
      }
    } else {
      status = *answer;
    }
  }
  if (status == PMIX_ERR_TIMEOUT) throw fence_timeout(attempted, find_absent(attempted, deadline), world_size());
  if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED) {
    throw pmix_error(ErrorCode::unavailable, attempted, "the PMIx server could not complete it", status,
                     "look for the first error in the launcher's log; a rank may have died");
  }
  broken_ = false;
}

std::vector<int> PmixStore::find_absent(const std::string& attempted, Deadline deadline) {
  const std::string key = batch_key(fences_.back());
  // Ask for a key that no rank has put: a living server answers at once. Do so before asking about the ranks, since
  // libpmix answers several questions about a rank with the first answer that comes.
  const int other = rank() == 0 ? world_size() - 1 : 0;
  const auto sign_of_life =
      start_get(session_->name_space(), other, batch_key(fences_.back() + 1), Reach::own_server, deadline);
  const bool lives = sign_of_life->wait(Deadline::after(deadline.remaining() / 4)).has_value();
  std::vector<std::shared_ptr<Mailbox<Answer>>> answers;
  for (int rank = 0; rank < world_size(); ++rank) {
    answers.push_back(rank == this->rank() ? nullptr
                                           : start_get(session_->name_space(), rank, key, Reach::arrival, deadline));
  }
  std::vector<int> absent;
  bool answered = false;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank == this->rank()) continue;
    const auto answer = answers[static_cast<std::size_t>(rank)]->wait(deadline);
    if (!answer || (answer->status != PMIX_SUCCESS && answer->status != kHasArrived)) absent.push_back(rank);
    answered = answered || answer.has_value();
  }
  if (!lives && !answered && !absent.empty()) {
    throw server_silent(attempted, "the PMIx server of this node no longer answers");
  }
  return absent;
}

Bytes PmixStore::read_value(int rank, const std::string& name, Where where, const std::string& attempted,
                            Deadline deadline) {
  std::optional<Answer> answer = own_copy(session_->name_space(), rank, name);
  if (answer->status != PMIX_SUCCESS) {
    answer = start_get(session_->name_space(), rank, name, Reach::own_server, deadline)->wait(deadline);
  }
  // Fences of PRRTE, which is Open MPI 5's mpirun, leave values at the nodes of the ranks that put them.
  if (where == Where::any_node && answer && answer->status == PMIX_ERR_NOT_FOUND) {
    answer = start_get(session_->name_space(), rank, name, Reach::anywhere, deadline)->wait(deadline);
  }
  if (!answer || answer->status == PMIX_ERR_TIMEOUT) {
    throw Error{{.code = ErrorCode::timeout,
                 .attempted = attempted,
                 .cause = "no answer before the deadline",
                 .native = answer ? pmix_status_name(answer->status) : "",
                 .ranks = {rank}}};
  }
  if (answer->status == PMIX_ERR_NOT_FOUND) throw key_not_found(attempted, pmix_status_name(answer->status));
  if (answer->status != PMIX_SUCCESS) {
    throw pmix_error(ErrorCode::unavailable, attempted, "PMIx_Get failed", answer->status,
                     "a fence has passed, so the value should be there; look for errors in the launcher's log");
  }
  return std::move(answer->value);
}

const PmixStore::Batch& PmixStore::batch(int rank, unsigned fence, const std::string& attempted, Deadline deadline) {
  const auto known = known_.find({rank, fence});
  if (known != known_.end()) return known->second;
  auto batch = base::decode<FenceBatch>(read_value(rank, batch_key(fence), Where::any_node, attempted, deadline));
  if (batch.store != number_) {
    throw Error{{.code = ErrorCode::not_found,
                 .attempted = attempted,
                 .cause = fmt::format("in this fence the rank was in its store {}, this rank in its store {}",
                                      batch.store + 1, number_ + 1),
                 .ranks = {rank},
                 .hint = "make the same stores, and fence them in the same order, on all ranks"}};
  }
  return known_[{rank, fence}] = std::move(batch.values);
}

Bytes PmixStore::get(int rank, std::string_view key, Deadline deadline) {
  check_key(key);
  check_rank(rank, world_size());
  const std::string attempted = fmt::format("getting '{}' of rank {} from the PMIx store", key, rank);
  check_usable(!broken_, attempted);
  for (auto fence = fences_.rbegin(); fence != fences_.rend(); ++fence) {  // the latest values are read most
    const Batch& values = batch(rank, *fence, attempted, deadline);
    if (const auto found = values.find(key); found != values.end()) return found->second;
  }
  throw key_not_found(attempted);
}

void PmixStore::put_on_node(std::string_view key, std::span<const std::byte> value) {
  check_key(key);
  const std::string attempted = fmt::format("putting '{}' for this node into the PMIx store", key);
  check_usable(!broken_, attempted);
  pending_on_node_[std::string(key)] = Bytes(value.begin(), value.end());
}

Bytes PmixStore::get_on_node(int rank, std::string_view key, Deadline deadline) {
  check_key(key);
  check_rank(rank, world_size());
  const std::string attempted = fmt::format("getting '{}' of rank {} on this node from the PMIx store", key, rank);
  check_usable(!broken_, attempted);
  return read_value(rank, node_key(number_, key), Where::this_node, attempted, deadline);
}

}  // namespace ddp::kvs
