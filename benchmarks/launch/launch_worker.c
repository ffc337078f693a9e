// The smallest program a launcher can start: notes when it runs, then exits (`launch_worker`) or waits for a signal
// (`launch_worker pause`). LAUNCH_MARKS names a file of records {int64 time, int64 pid}, one per rank and attempt; the
// time is CLOCK_MONOTONIC's in ns, common to all processes of a machine.
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/// The first of the two variables that is set: ddprun's and torchrun's, or srun's.
static long number(const char* name, const char* other, long otherwise) {
  const char* text = getenv(name);
  if (text == NULL) text = getenv(other);
  return text == NULL ? otherwise : strtol(text, NULL, 10);
}

int main(int argc, char** argv) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const char* path = getenv("LAUNCH_MARKS");
  const int64_t mark[2] = {(int64_t)now.tv_sec * 1000000000 + now.tv_nsec, getpid()};
  const long rank = number("RANK", "SLURM_PROCID", 0);
  const long world = number("WORLD_SIZE", "SLURM_NTASKS", 1);
  const long attempt = number("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", 0);
  const int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || pwrite(fd, mark, sizeof mark, (attempt * world + rank) * (long)sizeof mark) != sizeof mark) {
    perror("launch_worker: LAUNCH_MARKS");
    return 1;
  }
  if (argc > 1 && strcmp(argv[1], "pause") == 0) pause();
  return 0;
}
