// A plain PMIx client that checks what a launcher gives it, with no libddp in between.
// Usage: pmix_hello [abort]. Exit code 0 when everything is right; the first thing that is wrong is said on stderr.
// "abort": rank 1 calls PMIx_Abort(7) after the exchange, the others wait to be ended.
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pmix_proc_t self;

static void fail(const char* what, pmix_status_t status) {
  fprintf(stderr, "pmix_hello rank %u: %s: %s (%d)\n", self.rank, what, PMIx_Error_string(status), status);
  exit(1);
}

static void require(pmix_status_t status, const char* what) {
  if (status != PMIX_SUCCESS) fail(what, status);
}

/// The value of a job-level or rank-level key. Never freed: the process is short-lived.
static pmix_value_t* get(pmix_rank_t rank, const char* key) {
  pmix_proc_t proc;
  pmix_value_t* value = NULL;
  PMIX_LOAD_PROCID(&proc, self.nspace, rank);
  require(PMIx_Get(&proc, key, NULL, 0, &value), key);
  return value;
}

static uint32_t number_from_environment(const char* name) {
  const char* text = getenv(name);
  if (text == NULL) fail(name, PMIX_ERR_NOT_FOUND);
  return (uint32_t)strtoul(text, NULL, 10);
}

static void check_identity(void) {
  if (self.rank != number_from_environment("RANK")) fail("rank differs from RANK", PMIX_ERROR);
  const uint32_t size = get(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE)->data.uint32;
  if (size != number_from_environment("WORLD_SIZE")) fail("job size differs from WORLD_SIZE", PMIX_ERROR);
  if (get(PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE)->data.uint32 != size) fail("local size", PMIX_ERROR);
  if (get(PMIX_RANK_WILDCARD, PMIX_NUM_NODES)->data.uint32 != 1) fail("number of nodes", PMIX_ERROR);

  char map[64];
  snprintf(map, sizeof map, "(vector,(0,1,%u))", size);
  if (strcmp(get(PMIX_RANK_WILDCARD, PMIX_ANL_MAP)->data.string, map) != 0) fail("process map", PMIX_ERROR);

  char host[256] = "";
  gethostname(host, sizeof host - 1);
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (get(rank, PMIX_LOCAL_RANK)->data.uint16 != rank) fail("local rank", PMIX_ERROR);
    if (strcmp(get(rank, PMIX_HOSTNAME)->data.string, host) != 0) fail("host name", PMIX_ERROR);
  }

  pmix_proc_t* peers = NULL;
  size_t count = 0;
  require(PMIx_Resolve_peers(host, self.nspace, &peers, &count), "PMIx_Resolve_peers");
  if (count != size) fail("peers on this host", PMIX_ERROR);
}

static void exchange(void) {
  pmix_value_t value;
  pmix_info_t collect;
  const bool yes = true;
  const uint32_t mine = 1000 + self.rank;
  require(PMIx_Value_load(&value, (void*)&mine, PMIX_UINT32), "PMIx_Value_load");
  require(PMIx_Put(PMIX_GLOBAL, "hello", &value), "PMIx_Put");
  require(PMIx_Commit(), "PMIx_Commit");

  memset(&collect, 0, sizeof collect);
  require(PMIx_Info_load(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL), "PMIx_Info_load");
  require(PMIx_Fence(NULL, 0, &collect, 1), "PMIx_Fence");
  const uint32_t size = get(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE)->data.uint32;
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (get(rank, "hello")->data.uint32 != 1000 + rank) fail("value of a peer", PMIX_ERROR);
  }
}

int main(int argc, char** argv) {
  require(PMIx_Init(&self, NULL, 0), "PMIx_Init");
  check_identity();
  exchange();
  if (argc > 1 && strcmp(argv[1], "abort") == 0) {
    if (self.rank == 1) PMIx_Abort(7, "rank 1 gives up", NULL, 0);
    sleep(60);
  }
  require(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
  printf("rank %u of %s is well\n", self.rank, self.nspace);
  return 0;
}
