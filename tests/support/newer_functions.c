/* Compares packaging/wheel/newer.c, which this is linked with, to the C library's own functions, where it has them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char* strerrorname_np(int);
const char* sigabbrev_np(int);
uint32_t arc4random(void);
extern char** environ;

static void check(int right, const char* what, int number) {
  if (right) return;
  printf("%s differs at %d\n", what, number);
  exit(1);
}

static void names(const char* function, const char* (*ours)(int)) {
  const char* (*theirs)(int) = NULL;
  void* const found = dlsym(RTLD_NEXT, function);
  memcpy((void*)&theirs, &found, sizeof found);
  check(theirs != NULL && theirs != ours, function, -1);
  for (int number = -1; number < 200; ++number) {
    const char *own = ours(number), *other = theirs(number);
    check((own == NULL) == (other == NULL) && (own == NULL || strcmp(own, other) == 0), function, number);
  }
}

int main(void) {
  names("strerrorname_np", strerrorname_np);
  names("sigabbrev_np", sigabbrev_np);

  struct dl_find_object own, other;
  int (*theirs)(void*, struct dl_find_object*) = NULL;
  void* const found = dlsym(RTLD_NEXT, "_dl_find_object");
  memcpy((void*)&theirs, &found, sizeof found);
  void* const places[] = {(void*)main, (void*)printf, (void*)pthread_create};
  for (int i = 0; i < 3; ++i) {
    check(_dl_find_object(places[i], &own) == 0 && theirs(places[i], &other) == 0, "_dl_find_object", i);
    check(own.dlfo_eh_frame == other.dlfo_eh_frame, "_dl_find_object", i);
  }
  check(_dl_find_object(&own, &own) == -1, "_dl_find_object", 3); /* the stack */

  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  pthread_mutex_lock(&mutex);
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec = (until.tv_nsec + 999999999) % 1000000000; /* a nanosecond ago, or a second later */
  check(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &until) == ETIMEDOUT, "pthread_cond_clockwait", 0);
  check(arc4random() != arc4random() || arc4random() != arc4random(), "arc4random", 0);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int open = dup2(1, 77);
  check(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0, "addclosefrom_np", open);
  char* const command[] = {"sh", "-c", "[ ! -e /proc/self/fd/77 ]", NULL};
  pid_t child = 0;
  int status = 1;
  check(posix_spawn(&child, "/bin/sh", &actions, NULL, command, environ) == 0, "posix_spawn", 0);
  check(waitpid(child, &status, 0) == child && status == 0, "posix_spawn", status);
  puts("as the C library's");
  return 0;
}
