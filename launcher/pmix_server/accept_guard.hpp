// Keeps other users' processes away from the PMIx server. libpmix 4 listens on 127.0.0.1, believes the user id that a
// client sends, and reads a new client's first message without a deadline on the thread that serves all ranks: any user
// of the host could stop a job by connecting and saying nothing. libpmix has no hook before that.
#pragma once

namespace ddp::launcher {

/// From now on, connections that this process accepts with accept(2) are those of its own user only; others are closed
/// at once. ddprun itself uses accept4(2): this is libpmix's call, in the place of which the linker puts ours.
void guard_accept();

}  // namespace ddp::launcher
