// Time since this process's execve. C, because both contenders of the wire-up benchmark include it.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/// What exec_clock noted. Exits where exec_clock did not start this program.
static inline long long noted_ns(const char* variable) {
  const char* text = getenv(variable);
  if (text == NULL) {
    fprintf(stderr, "%s is not set; start this program with bench_exec_clock\n", variable);
    exit(2);
  }
  return strtoll(text, NULL, 10);
}

static inline long long clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
}

/// Nanoseconds since exec_clock's execve.
static inline long long since_exec_ns(void) { return clock_ns(CLOCK_MONOTONIC) - noted_ns("WIREUP_EXEC_NS"); }

/// Nanoseconds of CPU time since then, of all threads, kernel time included.
static inline long long cpu_since_exec_ns(void) {
  return clock_ns(CLOCK_PROCESS_CPUTIME_ID) - noted_ns("WIREUP_EXEC_CPU_NS");
}
