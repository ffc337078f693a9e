// A library that is taken for NCCL, and is not good enough.
#ifdef TEST_VERSION
extern "C" int ncclGetVersion(int* version) {
  *version = TEST_VERSION;
#ifdef TEST_RESULT
  return TEST_RESULT;
#endif
  return 0;
}
#else
extern "C" int ncclSomethingElse() { return 0; }
#endif
