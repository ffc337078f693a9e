// A double of NCCL: libnccl.so.2 over host memory, for ranks that are processes of one machine or threads of one
// process, each with a device of the fake CUDA (tests/support/fake_cuda), on whose streams its work runs. It is opened
// like the real one, with DDP_NCCL_LIBRARY. What it copies of NCCL's behaviour says in its source which lines of NCCL
// 2.30 it follows (file:line of NCCL's repository, tag v2.30.7-1 or a little later).
//
// Environment, read at the first call of the process:
//   FAKE_NCCL_DIR      folder for the files through which ranks meet (default: /dev/shm)
//   FAKE_NCCL_VERSION  code of the version that it says it is (default 23007)
//   FAKE_NCCL_MODE     strict (default): calls that do not match among ranks, and uses of NCCL that are undefined, are
//                      told on standard error; a mismatch ends the operation with the asynchronous error
//                      ncclInvalidArgument. real: it hangs until aborted
//   FAKE_NCCL_PEERS    report (default): a process that died, or a rank that aborted, gives the ranks that wait for it
//                      the asynchronous error ncclRemoteError, as on sockets; silent: nothing, as over shared memory
//   FAKE_NCCL_DEVICE_SLOTS  operations that a device can run at the same time; 0 (default): any number
//   FAKE_NCCL_CONNECT  lazy: the first collective of a communicator waits in the launch for those of all ranks, as
//                      NCCL_RUNTIME_CONNECT=1 does; eager (default): it does not
//   FAKE_NCCL_JITTER   seed of random delays, up to 2 ms, before what other threads do; 0 (default): none
//   FAKE_NCCL_FAULTS   as fake_nccl_faults
// NCCL_COMM_BLOCKING, NCCL_HOSTID and NCCL_MULTI_RANK_GPU_ENABLE mean what they mean to NCCL.
#pragma once

#pragma GCC visibility push(default)
extern "C" {

/// Replaces all faults: "FUNCTION[@RANK][#N]=ACTION[:VALUE[:VALUE]]", separated by commas. FUNCTION: without "nccl", as
/// in AllReduce or CommAbort; RANK: in the communicator; N: the Nth such call of that rank in this process from now on,
/// from 1; left out: each. Actions:
///   delay:MS  hang  fail:RESULT  kill  stop   the call; a hang ends with fake_nccl_release, or with the communicator's
///   abort
///                                            where NCCL would see that flag (all but CommAbort and CommDestroy)
///   launch_delay:MS  launch_hang            between the call and the stream, in non-blocking mode's helper thread
///   kernel_delay:MS  kernel_hang  kernel_stuck  kernel_kill  kernel_stop
///                                            on the stream; a hang ends with abort, a stuck one with fake_nccl_release
///                                            only
///   async:RESULT:MS                           the asynchronous error, MS after the call
///   version:CODE                              the version that the rank tells others at init
/// RESULT: by name. Calls that NCCL hands to a thread (CommInitRank..., CommSplit, CommFinalize, CommRevoke...) meet
/// their fault there. False, and nothing changed: @p faults cannot be read.
bool fake_nccl_faults(const char* faults);
/// Ends all hangs and stuck kernels.
void fake_nccl_release();
/// How often a function was called in this process since the last fake_nccl_faults, by @p rank, or -1: by all.
int fake_nccl_calls(const char* function, int rank);
/// Communicators of this process that exist.
int fake_nccl_live_comms();
/// Their names (ncclConfig_t::commName), a line each, as NCCL shows them: by the pointers that it was given. The text
/// lives until the thread's next call.
const char* fake_nccl_comm_names();
/// Pieces of memory that communicators of this process know.
int fake_nccl_registrations();
/// Operations on streams of this process that have not ended.
int fake_nccl_running();
/// What strict mode had to say since the last call, a line each; the text lives until the thread's next call.
const char* fake_nccl_complaints();
/// Like the environment variables of these names, for all later calls.
void fake_nccl_set_version(int code);
void fake_nccl_set_strict(bool strict);
void fake_nccl_set_report_peers(bool report);
void fake_nccl_set_device_slots(int slots);
void fake_nccl_set_lazy_connect(bool lazy);
void fake_nccl_set_jitter(unsigned seed);
}
#pragma GCC visibility pop
