// LD_PRELOAD: opening the folder that the variable DEAD_FOLDER names waits for ever, as where a file server does not
// answer.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*open_function)(const char*, int, ...);

static void wait_where_dead(const char* path) {
  const char* const dead = getenv("DEAD_FOLDER");
  while (dead != NULL && strcmp(path, dead) == 0) pause();
}

#define DEFINE_OPEN(name)                                               \
  int name(const char* path, int flags, ...) {                          \
    wait_where_dead(path);                                              \
    va_list arguments;                                                  \
    va_start(arguments, flags);                                         \
    const mode_t mode = va_arg(arguments, mode_t);                      \
    va_end(arguments);                                                  \
    return ((open_function)dlsym(RTLD_NEXT, #name))(path, flags, mode); \
  }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
