// For tests that repeat themselves: sanitizers make code ten times slower, and what they look for shows in the first of
// many random cases, all of which run without them.
#pragma once

namespace ddp::test {

#ifdef DDP_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// How many of @p all random or repeated cases a test runs: a tenth in a sanitized program.
constexpr int cases(int all) { return kSanitized ? (all + 9) / 10 : all; }

}  // namespace ddp::test
