// Processes that workers left behind: ddprun is a subreaper (PR_SET_CHILD_SUBREAPER), so whatever outlives the worker
// that started it, double-forked daemons included, becomes ddprun's child and can be found and ended.
#pragma once

#include <sys/types.h>

#include <functional>
#include <span>

#include <ddp/deadline.hpp>

namespace ddp::launcher {

/// Makes this process adopt orphaned descendants. Throws Error(system).
void become_subreaper();

/// Removes adopted orphans that have ended from the process table. @p workers are left alone.
void reap_orphans(std::span<const pid_t> workers);

/// What became of orphans.
struct OrphanCount {
  int ended;      ///< ended after SIGTERM or SIGKILL
  int remaining;  ///< still there at the deadline, for example in uninterruptible sleep
};

/// Ends all child processes of this process and what they leave behind in turn, except @p workers: SIGTERM (and
/// SIGCONT), SIGKILL after @p term_deadline; gives up at @p kill_deadline. Calls @p meanwhile often.
OrphanCount end_orphans(std::span<const pid_t> workers, Deadline term_deadline, Deadline kill_deadline,
                        const std::function<void()>& meanwhile);

/// Kills all descendants of this process at once, detached ones too. For a process that may itself be killed any
/// moment, as by a scheduler that finds its parent dead.
void kill_descendants();

/// Sends @p signal to all descendants of this process once, detached ones too: for SIGSTOP and SIGCONT.
void signal_descendants(int signal);

}  // namespace ddp::launcher
