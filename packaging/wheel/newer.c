/* What code compiled with today's headers calls that manylinux_2_28's C library lacks. Linked into each library and
   program of the wheel, where it stays private. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* libstdc++ then counts references with atomic instructions always, as it must where it cannot know. */
char __libc_single_threaded = 0;

/* The system's where it has one, else by the clock of pthread_cond_timedwait, which may be set meanwhile: libstdc++
   looks at its own clock again, and waits on. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  static int (*volatile system_wait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  static volatile int looked;
  if (!looked) {
    void* const found = dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    memcpy((void*)&system_wait, &found, sizeof found);
    __sync_synchronize();
    looked = 1;
  }
  if (system_wait != NULL) return system_wait(condition, mutex, clock, until);
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, until);
  struct timespec here, there;
  if (clock_gettime(clock, &here) != 0 || clock_gettime(CLOCK_REALTIME, &there) != 0) return EINVAL;
  struct timespec real = {there.tv_sec + until->tv_sec - here.tv_sec, there.tv_nsec + until->tv_nsec - here.tv_nsec};
  for (; real.tv_nsec < 0; real.tv_nsec += 1000000000) --real.tv_sec;
  for (; real.tv_nsec >= 1000000000; real.tv_nsec -= 1000000000) ++real.tv_sec;
  return pthread_cond_timedwait(condition, mutex, &real);
}

void arc4random_buf(void* memory, size_t size) {
  for (size_t done = 0; done < size;) {
    const long got = syscall(SYS_getrandom, (char*)memory + done, size - done, 0);
    if (got < 0 && errno != EINTR) abort();
    if (got > 0) done += (size_t)got;
  }
}

uint32_t arc4random(void) {
  uint32_t number = 0;
  arc4random_buf(&number, sizeof number);
  return number;
}

/* The system's where it has one; else what is open now. */
int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t* actions, int from) {
  int (*system_add)(posix_spawn_file_actions_t*, int) = NULL;
  void* const found = dlsym(RTLD_DEFAULT, "posix_spawn_file_actions_addclosefrom_np");
  memcpy((void*)&system_add, &found, sizeof found);
  if (system_add != NULL) return system_add(actions, from);
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == NULL) return errno;
  int failed = 0;
  for (const struct dirent* entry = readdir(folder); entry != NULL && failed == 0; entry = readdir(folder)) {
    const int file = atoi(entry->d_name);
    if (entry->d_name[0] != '.' && file >= from && file != dirfd(folder))
      failed = posix_spawn_file_actions_addclose(actions, file);
  }
  closedir(folder);
  return failed;
}

// clang-format off
#define ERRORS(X) \
  X(EPERM) X(ENOENT) X(ESRCH) X(EINTR) X(EIO) X(ENXIO) X(E2BIG) X(ENOEXEC) X(EBADF) X(ECHILD) X(EAGAIN) \
  X(ENOMEM) X(EACCES) X(EFAULT) X(ENOTBLK) X(EBUSY) X(EEXIST) X(EXDEV) X(ENODEV) X(ENOTDIR) X(EISDIR) \
  X(EINVAL) X(ENFILE) X(EMFILE) X(ENOTTY) X(ETXTBSY) X(EFBIG) X(ENOSPC) X(ESPIPE) X(EROFS) X(EMLINK) X(EPIPE) \
  X(EDOM) X(ERANGE) X(EDEADLK) X(ENAMETOOLONG) X(ENOLCK) X(ENOSYS) X(ENOTEMPTY) X(ELOOP) X(ENOMSG) X(EIDRM) \
  X(ECHRNG) X(EL2NSYNC) X(EL3HLT) X(EL3RST) X(ELNRNG) X(EUNATCH) X(ENOCSI) X(EL2HLT) X(EBADE) X(EBADR) \
  X(EXFULL) X(ENOANO) X(EBADRQC) X(EBADSLT) X(EBFONT) X(ENOSTR) X(ENODATA) X(ETIME) X(ENOSR) X(ENONET) \
  X(ENOPKG) X(EREMOTE) X(ENOLINK) X(EADV) X(ESRMNT) X(ECOMM) X(EPROTO) X(EMULTIHOP) X(EDOTDOT) X(EBADMSG) \
  X(EOVERFLOW) X(ENOTUNIQ) X(EBADFD) X(EREMCHG) X(ELIBACC) X(ELIBBAD) X(ELIBSCN) X(ELIBMAX) X(ELIBEXEC) \
  X(EILSEQ) X(ERESTART) X(ESTRPIPE) X(EUSERS) X(ENOTSOCK) X(EDESTADDRREQ) X(EMSGSIZE) X(EPROTOTYPE) \
  X(ENOPROTOOPT) X(EPROTONOSUPPORT) X(ESOCKTNOSUPPORT) X(EOPNOTSUPP) X(EPFNOSUPPORT) X(EAFNOSUPPORT) \
  X(EADDRINUSE) X(EADDRNOTAVAIL) X(ENETDOWN) X(ENETUNREACH) X(ENETRESET) X(ECONNABORTED) X(ECONNRESET) \
  X(ENOBUFS) X(EISCONN) X(ENOTCONN) X(ESHUTDOWN) X(ETOOMANYREFS) X(ETIMEDOUT) X(ECONNREFUSED) X(EHOSTDOWN) \
  X(EHOSTUNREACH) X(EALREADY) X(EINPROGRESS) X(ESTALE) X(EUCLEAN) X(ENOTNAM) X(ENAVAIL) X(EISNAM) X(EREMOTEIO) \
  X(EDQUOT) X(ENOMEDIUM) X(EMEDIUMTYPE) X(ECANCELED) X(ENOKEY) X(EKEYEXPIRED) X(EKEYREVOKED) X(EKEYREJECTED) \
  X(EOWNERDEAD) X(ENOTRECOVERABLE) X(ERFKILL) X(EHWPOISON)
#define SIGNALS(X) \
  X(HUP) X(INT) X(QUIT) X(ILL) X(TRAP) X(ABRT) X(BUS) X(FPE) X(KILL) X(USR1) X(SEGV) X(USR2) X(PIPE) X(ALRM) \
  X(TERM) X(STKFLT) X(CHLD) X(CONT) X(STOP) X(TSTP) X(TTIN) X(TTOU) X(URG) X(XCPU) X(XFSZ) X(VTALRM) X(PROF) \
  X(WINCH) X(POLL) X(PWR) X(SYS)
// clang-format on

const char* strerrorname_np(int number) {
  switch (number) {
    case 0: return "0";
#define NAME(name) \
  case name: return #name;
      ERRORS(NAME)
#undef NAME
    default: return NULL;
  }
}

const char* strerrordesc_np(int number) { return strerrorname_np(number) == NULL ? NULL : strerror(number); }

const char* sigabbrev_np(int number) {
  switch (number) {
#define NAME(name) \
  case SIG##name: return #name;
    SIGNALS(NAME)
#undef NAME
    default: return NULL;
  }
}

/* For libgcc's unwinder inside the plugin of srun. */
struct search {
  uintptr_t address;
  struct dl_find_object* result;
};

static int holds(struct dl_phdr_info* info, size_t size, void* data) {
  struct search* const search = data;
  uintptr_t begin = 0, end = 0;
  void* frames = NULL;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const header = &info->dlpi_phdr[i];
    const uintptr_t from = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_GNU_EH_FRAME) frames = (void*)from;
    if (header->p_type != PT_LOAD || search->address < from || search->address >= from + header->p_memsz) continue;
    begin = from;
    end = from + header->p_memsz;
  }
  if (end == 0 || frames == NULL) return 0;
  memset(search->result, 0, sizeof *search->result);
  search->result->dlfo_map_start = (void*)begin;
  search->result->dlfo_map_end = (void*)end;
  search->result->dlfo_eh_frame = frames;
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* result) {
  struct search search = {(uintptr_t)address, result};
  return dl_iterate_phdr(holds, &search) == 1 ? 0 : -1;
}
