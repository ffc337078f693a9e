#include "collectives/shm/peer_memory.hpp"

#include <sys/uio.h>

#include <array>
#include <atomic>

namespace ddp::collectives::shm {

bool PeerMemory::read(void* to, std::uint64_t from, std::size_t bytes) const noexcept {
  if (peer_->pid_space != own_->pid_space) return false;
  // Another process may have the rank's PID by now. One call reads from one process only: so if the number that no
  // other process has came along, the message is the rank's, too.
  std::uint64_t process = 0;
  const std::array<iovec, 2> here{{{to, bytes}, {&process, sizeof process}}};
  const std::array<iovec, 2> there{{{reinterpret_cast<void*>(from), bytes},  // NOLINT(performance-no-int-to-ptr)
                                    {reinterpret_cast<void*>(peer_->process_at), sizeof process}}};  // NOLINT
  const ssize_t got =
      ::process_vm_readv(static_cast<pid_t>(peer_->pid), here.data(), here.size(), there.data(), there.size(), 0);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // all was read before the rank is asked
  return got == static_cast<ssize_t>(bytes + sizeof process) && process == peer_->process &&
         peer_->withdrawn.load(std::memory_order_seq_cst) == 0;
}

void PeerMemory::withdraw(RankControl& own) noexcept {
  own.withdrawn.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before anything else is written to a message's memory
}

}  // namespace ddp::collectives::shm
