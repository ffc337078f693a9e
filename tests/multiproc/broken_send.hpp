// A test program's own sendmsg(): sends half of a message, so that the test can end the process there.
#pragma once

namespace ddp::collectives::testing {

/// Called once half of a message of some kilobytes has been sent; empty: sendmsg() is the kernel's. Set before threads
/// send.
extern std::function<void()> after_half_a_message;

}  // namespace ddp::collectives::testing
