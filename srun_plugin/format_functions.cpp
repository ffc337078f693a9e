// fmt's functions as a part of the plugin, which must not need libfmt.so: hosts that only run tasks may lack it. The
// options that this file is compiled with emit all of them, whatever the compiler would have inlined elsewhere.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY 1
#endif
#include <fmt/format.h>
