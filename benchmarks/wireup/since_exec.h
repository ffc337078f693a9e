// The time since this process's execve, in C because both contenders of the wire-up benchmark use it.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/// Nanoseconds since exec_clock started this program. Ends a program that was started in another way: there is nothing
/// to measure then.
static inline long long since_exec_ns(void) {
  const char* text = getenv("WIREUP_EXEC_NS");
  if (text == NULL) {
    fprintf(stderr, "WIREUP_EXEC_NS is not set; start this program with bench_exec_clock\n");
    exit(2);
  }
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (long long)now.tv_sec * 1000000000LL + now.tv_nsec - strtoll(text, NULL, 10);
}

/// Nanoseconds of CPU time that all threads of this process have used, exec and dynamic linking included.
static inline long long cpu_ns(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (long long)used.tv_sec * 1000000000LL + used.tv_nsec;
}
