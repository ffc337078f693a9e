// The cost of wire-up without libddp: a client that uses only libpmix.
//
//   bare_pmix ROUNDS
//
// PMIx_Init; ROUNDS times Put of one 256-byte value, Commit and Fence with collected data; Get of every rank's last
// value. Prints one line of times since exec before PMIx_Finalize.
#define _POSIX_C_SOURCE 200809L

#include <pmix.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "since_exec.h"

enum { kValueBytes = 256 };

static void check(pmix_status_t status, const char* attempted) {
  if (status == PMIX_SUCCESS) return;
  fprintf(stderr, "bare_pmix: %s: %s (%d)\n", attempted, PMIx_Error_string(status), status);
  exit(1);
}

static unsigned job_size(const pmix_proc_t* self) {
  pmix_proc_t job;
  pmix_value_t* value = NULL;
  PMIX_LOAD_PROCID(&job, self->nspace, PMIX_RANK_WILDCARD);
  check(PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &value), "PMIx_Get of PMIX_JOB_SIZE");
  const unsigned size = value->data.uint32;
  PMIX_VALUE_RELEASE(value);
  return size;
}

static void put_and_fence(const pmix_proc_t* self, int round) {
  char bytes[kValueBytes];
  memset(bytes, (int)self->rank, sizeof bytes);
  char key[32];
  snprintf(key, sizeof key, "value.%d", round);
  pmix_value_t value;
  PMIX_VALUE_CONSTRUCT(&value);
  value.type = PMIX_BYTE_OBJECT;
  value.data.bo.bytes = bytes;
  value.data.bo.size = sizeof bytes;
  check(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx_Put");
  check(PMIx_Commit(), "PMIx_Commit");

  pmix_proc_t everyone;
  PMIX_LOAD_PROCID(&everyone, self->nspace, PMIX_RANK_WILDCARD);
  const bool collect = true;
  pmix_info_t* info = NULL;
  PMIX_INFO_CREATE(info, 1);
  PMIX_INFO_LOAD(info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
  check(PMIx_Fence(&everyone, 1, info, 1), "PMIx_Fence");
  PMIX_INFO_FREE(info, 1);
}

static void get_all(const pmix_proc_t* self, unsigned ranks, int round) {
  char key[32];
  snprintf(key, sizeof key, "value.%d", round);
  for (unsigned rank = 0; rank < ranks; ++rank) {
    pmix_proc_t proc;
    pmix_value_t* value = NULL;
    PMIX_LOAD_PROCID(&proc, self->nspace, rank);
    check(PMIx_Get(&proc, key, NULL, 0, &value), "PMIx_Get");
    if (value->data.bo.size != kValueBytes || value->data.bo.bytes[0] != (char)rank) {
      fprintf(stderr, "bare_pmix: rank %u returned a value it did not put\n", rank);
      exit(1);
    }
    PMIX_VALUE_RELEASE(value);
  }
}

int main(int argc, char** argv) {
  const long long started = since_exec_ns();
  const int rounds = argc == 2 ? atoi(argv[1]) : 0;
  if (rounds < 1) {
    fprintf(stderr, "usage: %s ROUNDS\n", argv[0]);
    return 2;
  }
  pmix_proc_t self;
  check(PMIx_Init(&self, NULL, 0), "PMIx_Init");
  const unsigned ranks = job_size(&self);
  const long long joined = since_exec_ns();
  for (int round = 0; round < rounds; ++round) put_and_fence(&self, round);
  const long long fenced = since_exec_ns();
  get_all(&self, ranks, rounds - 1);
  const long long wired = since_exec_ns();
  const long long cpu = cpu_since_exec_ns();
  printf(
      "{\"rank\": %u, \"ranks\": %u, \"main\": %lld, \"joined\": %lld, \"fenced\": %lld, \"wired\": %lld, \"cpu\": "
      "%lld}\n",
      self.rank, ranks, started, joined, fenced, wired, cpu);
  fflush(stdout);
  check(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
  return 0;
}
