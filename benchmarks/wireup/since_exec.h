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
