// `exec_clock PROGRAM [ARGUMENT...]` executes PROGRAM with the time of its execve in WIREUP_EXEC_NS and the CPU time
// used until then in WIREUP_EXEC_CPU_NS (see since_exec.h). The start time in /proc/self/stat has a resolution of 10
// ms, and a time taken in main() misses the dynamic linker, which a job pays for.
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void note(const char* variable, clockid_t clock) {
  struct timespec now;
  char text[32];
  clock_gettime(clock, &now);
  snprintf(text, sizeof text, "%lld", (long long)now.tv_sec * 1000000000LL + now.tv_nsec);
  setenv(variable, text, 1);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s PROGRAM [ARGUMENT...]\n", argv[0]);
    return 2;
  }
  note("WIREUP_EXEC_NS", CLOCK_MONOTONIC);
  note("WIREUP_EXEC_CPU_NS", CLOCK_PROCESS_CPUTIME_ID);
  execvp(argv[1], argv + 1);
  fprintf(stderr, "starting %s: %s\n", argv[1], strerror(errno));
  return 127;
}
