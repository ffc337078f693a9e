// A shared library that is no backend plugin.
extern "C" int ddp_test_something_else() { return 1; }
