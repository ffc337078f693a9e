// A program without anything of its own: see ddp_test_headers in tests/CMakeLists.txt.
int main() { return 0; }
