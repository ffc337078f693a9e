#include "room.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

namespace fake_nccl {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// Field 22 of /proc/PID/stat, in clock ticks since boot; 0: no such process, or it is a zombie.
std::uint64_t start_time_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');  // the name may have spaces
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  constexpr int kFieldsBetween = 18;
  for (int i = 0; i < kFieldsBetween; ++i) fields >> field;
  std::uint64_t time = 0;
  fields >> time;
  return time;
}

}  // namespace

struct Room::Head {
  std::atomic<int> size;
  std::atomic<int> all_joined;
  std::atomic<std::uint64_t> grow_number;
  char grow_id[kUniqueIdBytes];  // NOLINT(*-avoid-c-arrays)
};

Room::Room(const std::string& name, int size)
    : name_(name), path_(settings().folder + "/fake_nccl_" + name), size_(size) {
  const auto ranks = static_cast<std::size_t>(size);
  bytes_ =
      pages(sizeof(Head)) + pages(ranks * sizeof(RankPlace)) + ranks * kSlotBytes + ranks * ranks * sizeof(Mailbox);
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) throw std::system_error(errno, std::generic_category(), path_);
  // Zeroes are its first state. It only grows: one who names another size must not cut what others have mapped.
  const off_t now = lseek(file, 0, SEEK_END);
  void* memory = MAP_FAILED;
  if (now >= static_cast<off_t>(bytes_) || ftruncate(file, static_cast<off_t>(bytes_)) == 0) {
    memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  }
  const int error = errno;
  close(file);
  if (memory == MAP_FAILED) throw std::system_error(error, std::generic_category(), path_);
  memory_ = static_cast<std::byte*>(memory);
}

Room::~Room() {
  if (head().all_joined == 0) unlink(path_.c_str());
  munmap(memory_, bytes_);
}

Room::Head& Room::head() const { return *reinterpret_cast<Head*>(memory_); }
RankPlace& Room::place(int rank) const { return reinterpret_cast<RankPlace*>(memory_ + pages(sizeof(Head)))[rank]; }
std::byte* Room::slot(int rank) const {
  return memory_ + pages(sizeof(Head)) + pages(static_cast<std::size_t>(size_) * sizeof(RankPlace)) +
         static_cast<std::size_t>(rank) * kSlotBytes;
}
Mailbox& Room::mailbox(int from, int to) const {
  auto* first = reinterpret_cast<Mailbox*>(slot(size_));
  return first[from * size_ + to];
}
std::atomic<std::uint64_t>& Room::grow_number() const { return head().grow_number; }
char* Room::grow_id() const { return head().grow_id; }

bool Room::join(int rank, int version, const std::string& device, const Stop& stop) {
  const Stop never = [] { return false; };
  int none = 0;
  if (!head().size.compare_exchange_strong(none, size_) && none != size_) {
    // bootstrap.cc, bootstrapRoot: "mismatch in rank count": the root gives up, and all wait for ever
    complain("rank " + std::to_string(rank) + " wants " + std::to_string(size_) + " ranks, others " +
             std::to_string(none));
    wait_until(never, stop);
    return false;
  }
  RankPlace& mine = place(rank);
  Presence absent = Presence::absent;
  mine.pid = getpid();
  mine.start_time = start_time_of(mine.pid);
  mine.version = version;
  std::snprintf(mine.device, sizeof mine.device, "%s", device.c_str());
  if (!mine.presence.compare_exchange_strong(absent, Presence::joined)) {
    complain("rank " + std::to_string(rank) + " is there twice");  // bootstrapRoot: "has already checked in"
    wait_until(never, stop);
    return false;
  }
  const Stop all_there = [&] {
    if (head().all_joined != 0) return true;
    for (int peer = 0; peer < size_; ++peer) {
      if (place(peer).presence == Presence::absent) return false;
    }
    return true;
  };
  // One missing rank is waited for without end: NCCL has no limit of its own.
  if (!wait_until(all_there, stop)) return false;
  head().all_joined = 1;
  unlink(path_.c_str());  // whoever comes first
  return true;
}

void Room::leave(int rank) {
  Presence joined = Presence::joined;
  place(rank).presence.compare_exchange_strong(joined, Presence::left);
}

int Room::missing() const {
  for (int rank = 0; rank < size_; ++rank) {
    const RankPlace& other = place(rank);
    const Presence presence = other.presence;
    if (presence == Presence::absent) continue;
    if (presence == Presence::left) return rank;
    if (other.pid != getpid() && start_time_of(other.pid) != other.start_time) return rank;
  }
  return -1;
}

bool Room::exchange(int rank, const void* data, std::size_t bytes, const Stop& stop) {
  RankPlace& mine = place(rank);
  const std::uint64_t step = mine.talk_step;
  const auto reached = [&](std::uint64_t wanted) {
    return wait_until(
        [&] {
          for (int peer = 0; peer < size_; ++peer) {
            if (place(peer).talk_step < wanted) return false;
          }
          return true;
        },
        stop);
  };
  if (!reached(step)) return false;
  std::memcpy(mine.talk, data, std::min(bytes, sizeof mine.talk));
  mine.talk_step = step + 1;
  return reached(step + 1);
}

void Room::exchanged(int rank) { place(rank).talk_step += 1; }

}  // namespace fake_nccl
