/* For LD_PRELOAD: a program whose clock is wrong by SHIFTED_CLOCK_SECONDS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

time_t time(time_t* result) {
  static time_t (*real)(time_t*);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "time");
  const char* shift = getenv("SHIFTED_CLOCK_SECONDS");
  const time_t now = real(NULL) + (shift ? atol(shift) : 0);
  if (result) *result = now;
  return now;
}
