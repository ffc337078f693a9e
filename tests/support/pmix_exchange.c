// A plain PMIx client of a job that spans nodes, with no libddp in between: checks what the launcher says about the
// job, and exchanges values with every other rank.
//
//   pmix_exchange exchange    facts of the job; fences with and without data, of all ranks, of a node and of {1,2}
//   pmix_exchange direct      gets without any fence; the last rank puts its value only after SIGUSR1
//   pmix_exchange fence       one fence of all; the last rank but one enters it only after SIGUSR1
//   pmix_exchange missing [SECONDS]   rank 0 asks the last rank for a key that nobody puts
//
// TEST_NODE_NAMES="n0,n1" and TEST_NODE_OF="0,0,1,1" say how the job is laid out. Exit code 0 when everything is right;
// the first thing that is wrong is said on stderr. "fence" and "missing" print the status of the call and return 0.
#define _GNU_SOURCE

#include <pmix.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kMostRanks = 64, kLargeBytes = 300000, kLimitSeconds = 120 };

static pmix_proc_t self;
static unsigned size;
static unsigned node_of[kMostRanks];
static char* node_names[kMostRanks];
static unsigned num_nodes;

static void fail(const char* what, pmix_status_t status) {
  fprintf(stderr, "pmix_exchange rank %u: %s: %s (%d)\n", self.rank, what, PMIx_Error_string(status), status);
  _exit(1);
}

static void require(pmix_status_t status, const char* what) {
  if (status != PMIX_SUCCESS) fail(what, status);
}

static void check(bool holds, const char* what) {
  if (!holds) fail(what, PMIX_ERROR);
}

static void read_layout(void) {
  char* names = strdup(getenv("TEST_NODE_NAMES"));
  for (char* name = strtok(names, ","); name != NULL; name = strtok(NULL, ",")) node_names[num_nodes++] = name;
  char* nodes = strdup(getenv("TEST_NODE_OF"));
  for (char* node = strtok(nodes, ","); node != NULL; node = strtok(NULL, ",")) {
    node_of[size++] = (unsigned)strtoul(node, NULL, 10);
  }
}

/// Never freed: the process is short-lived.
static pmix_value_t* get(pmix_rank_t rank, const char* key) {
  pmix_proc_t proc;
  pmix_value_t* value = NULL;
  PMIX_LOAD_PROCID(&proc, self.nspace, rank);
  require(PMIx_Get(&proc, key, NULL, 0, &value), key);
  return value;
}

static bool text_is(pmix_rank_t rank, const char* key, const char* expected) {
  const char* text = get(rank, key)->data.string;
  if (strcmp(text, expected) == 0) return true;
  fprintf(stderr, "rank %u: %s of rank %d is '%s', expected '%s'\n", self.rank, key, (int)rank, text, expected);
  return false;
}

static unsigned local_rank_of(unsigned rank) {
  unsigned local = 0;
  for (unsigned other = 0; other < rank; ++other) local += node_of[other] == node_of[rank];
  return local;
}

static unsigned ranks_on(unsigned node) {
  unsigned count = 0;
  for (unsigned rank = 0; rank < size; ++rank) count += node_of[rank] == node;
  return count;
}

static void check_job(void) {
  const unsigned own_node = node_of[self.rank];
  check(get(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE)->data.uint32 == size, "job size");
  check(get(PMIX_RANK_WILDCARD, PMIX_UNIV_SIZE)->data.uint32 == size, "universe size");
  check(get(PMIX_RANK_WILDCARD, PMIX_NUM_NODES)->data.uint32 == num_nodes, "number of nodes");
  check(get(PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE)->data.uint32 == ranks_on(own_node), "local size");

  char map[512] = "(vector";
  char peers[512] = "";
  for (unsigned node = 0, next; node < num_nodes; node = next) {
    for (next = node; next < num_nodes && ranks_on(next) == ranks_on(node); ++next) {
    }
    snprintf(map + strlen(map), sizeof map - strlen(map), ",(%u,%u,%u)", node, next - node, ranks_on(node));
  }
  strcat(map, ")");
  for (unsigned rank = 0; rank < size; ++rank) {
    if (node_of[rank] != own_node) continue;
    snprintf(peers + strlen(peers), sizeof peers - strlen(peers), "%s%u", peers[0] == 0 ? "" : ",", rank);
  }
  check(text_is(PMIX_RANK_WILDCARD, PMIX_ANL_MAP, map), "process map");
  check(text_is(PMIX_RANK_WILDCARD, PMIX_LOCAL_PEERS, peers), "local peers");
}

static void check_ranks(void) {
  for (unsigned rank = 0; rank < size; ++rank) {
    check(get(rank, PMIX_LOCAL_RANK)->data.uint16 == local_rank_of(rank), "local rank");
    // libpmix 4.2 looks for other nodes' numbers in its record of the node, where it does not store them
    if (node_of[rank] == node_of[self.rank]) {
      check(get(rank, PMIX_NODEID)->data.uint32 == node_of[rank], "node number");
    }
    check(get(rank, PMIX_GLOBAL_RANK)->data.rank == rank, "global rank");
    check(text_is(rank, PMIX_HOSTNAME, node_names[node_of[rank]]), "host name");
  }
  for (unsigned node = 0; node < num_nodes; ++node) {
    pmix_proc_t* peers = NULL;
    size_t count = 0;
    require(PMIx_Resolve_peers(node_names[node], self.nspace, &peers, &count), "PMIx_Resolve_peers");
    check(count == ranks_on(node), "number of peers on a node");
    for (size_t i = 0; i < count; ++i) check(node_of[peers[i].rank] == node, "a peer on another node");
  }
  char* nodes = NULL;
  require(PMIx_Resolve_nodes(self.nspace, &nodes), "PMIx_Resolve_nodes");
  check(strcmp(nodes, getenv("TEST_NODE_NAMES")) == 0, nodes);
}

/// Waits for what may not have been put yet: without a limit of the caller's, the library gives local ranks 2 s.
static pmix_value_t* get_patiently(pmix_rank_t rank, const char* key, int seconds, pmix_status_t* status) {
  pmix_proc_t proc;
  pmix_info_t limit;
  pmix_value_t* value = NULL;
  PMIX_LOAD_PROCID(&proc, self.nspace, rank);
  PMIX_INFO_LOAD(&limit, PMIX_TIMEOUT, &seconds, PMIX_INT);
  *status = PMIx_Get(&proc, key, &limit, 1, &value);
  return value;
}

/// A value that differs by rank, key and place in it.
static void fill(char* bytes, size_t length, unsigned rank, const char* key) {
  for (size_t i = 0; i < length; ++i) bytes[i] = (char)(rank * 31 + (unsigned)key[0] + i * 7 + i / 256);
}

static void put(const char* key, size_t length) {
  char* bytes = malloc(length);
  fill(bytes, length, self.rank, key);
  pmix_value_t value;
  PMIX_VALUE_CONSTRUCT(&value);
  value.type = PMIX_BYTE_OBJECT;
  value.data.bo.bytes = bytes;
  value.data.bo.size = length;
  require(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx_Put");
  require(PMIx_Commit(), "PMIx_Commit");
  free(bytes);
}

static void expect(unsigned rank, const char* key, size_t length) {
  pmix_status_t status = PMIX_SUCCESS;
  const pmix_value_t* value = get_patiently(rank, key, kLimitSeconds / 2, &status);
  require(status, key);
  char* bytes = malloc(length);
  fill(bytes, length, rank, key);
  check(value->type == PMIX_BYTE_OBJECT && value->data.bo.size == length, "the length of a value");
  check(memcmp(value->data.bo.bytes, bytes, length) == 0, "a value");
  free(bytes);
}

static pmix_status_t fence(const pmix_proc_t* procs, size_t count, bool collect) {
  pmix_info_t info;
  memset(&info, 0, sizeof info);
  require(PMIx_Info_load(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL), "PMIx_Info_load");
  return PMIx_Fence(procs, count, &info, 1);
}

static void exchange(void) {
  pmix_proc_t procs[kMostRanks];
  char key[32];
  for (unsigned round = 0; round < 3; ++round) {
    snprintf(key, sizeof key, "%c.round", 'a' + (int)round);
    const size_t length = round == 1 ? kLargeBytes : 100 + round;
    put(key, length);
    require(fence(NULL, 0, true), "fence with data");
    for (unsigned rank = 0; rank < size; ++rank) expect(rank, key, length);
  }
  require(fence(NULL, 0, true), "fence with data, but nothing new");
  require(PMIx_Fence(NULL, 0, NULL, 0), "empty fence");

  size_t count = 0;
  for (unsigned rank = 0; rank < size; ++rank) {
    if (node_of[rank] != node_of[self.rank]) continue;
    PMIX_LOAD_PROCID(&procs[count], self.nspace, rank);  // a macro that uses its arguments several times
    ++count;
  }
  require(PMIx_Fence(procs, count, NULL, 0), "fence of one node");

  if (self.rank == 1 || self.rank == 2) {
    put("subset", 50);
    PMIX_LOAD_PROCID(&procs[0], self.nspace, self.rank == 1 ? 2 : 1);  // in another order on each
    PMIX_LOAD_PROCID(&procs[1], self.nspace, self.rank);
    require(fence(procs, 2, true), "fence of two ranks");
    expect(1, "subset", 50);
    expect(2, "subset", 50);
  }
  require(PMIx_Fence(NULL, 0, NULL, 0), "empty fence after that of two ranks");
}

static void await_signal(void) {
  sigset_t set;
  int number = 0;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  check(sigwait(&set, &number) == 0, "sigwait");
}

static void say(const char* what, pmix_status_t status) {
  printf("%s rank=%u status=%d\n", what, self.rank, status);
  fflush(stdout);
}

/// Ranks ask other nodes only: libpmix 4.2.2 now and then answers "not found" to a rank that waits for a value of its
/// own node while another node's question about it is open, too.
static void direct(void) {
  if (self.rank == 0) put("early", kLargeBytes);
  if (self.rank == size - 1) {
    await_signal();
    put("late", 40);
  }
  if (node_of[self.rank] == node_of[0]) {
    expect(size - 1, "late", 40);
  } else {
    expect(0, "early", kLargeBytes);
  }
  require(PMIx_Fence(NULL, 0, NULL, 0), "empty fence: the others have what they want");
}

static void one_fence(void) {
  put("value", 20);
  say("READY", PMIX_SUCCESS);
  if (self.rank + 2 == size) await_signal();
  say("FENCE", fence(NULL, 0, true));
}

static void missing(const char* limit) {
  if (self.rank == size - 1) put("something", 10);
  if (self.rank == 0) {
    pmix_status_t status = PMIX_SUCCESS;
    get_patiently(size - 1, "nobody.puts.this", strcmp(limit, "") == 0 ? kLimitSeconds : atoi(limit), &status);
    say("GET", status);
  }
  PMIx_Fence(NULL, 0, NULL, 0);
}

int main(int argc, char** argv) {
  const char* scenario = argc > 1 ? argv[1] : "";
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, NULL);  // before libpmix starts its thread
  alarm(kLimitSeconds);
  read_layout();
  require(PMIx_Init(&self, NULL, 0), "PMIx_Init");
  if (strcmp(scenario, "exchange") == 0) {
    check_job();
    check_ranks();
    exchange();
  } else if (strcmp(scenario, "direct") == 0) {
    direct();
  } else if (strcmp(scenario, "fence") == 0) {
    one_fence();
  } else if (strcmp(scenario, "missing") == 0) {
    missing(argc > 2 ? argv[2] : "");
  } else {
    fprintf(stderr, "usage: %s exchange|direct|fence|missing\n", argv[0]);
    return 2;
  }
  require(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
  printf("DONE rank=%u\n", self.rank);
  return 0;
}
