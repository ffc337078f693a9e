// A library that has a version and nothing else of CUDA's driver.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
