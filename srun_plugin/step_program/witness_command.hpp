// ddp-step witness: a node's process that tells the step's store which connections of the node are the user's.
#pragma once

namespace ddp::srun_plugin {

/// Reads the store's address, port and key, one line with blanks between, from standard input. Returns at once in the
/// process that was started, so that the task is not its parent; what it leaves behind makes the node known to the
/// store, checks that the store serves the node, writes "ddp-step 1 known" or "error TEXT" to standard output, then the
/// line of RanksStore, and stays until the store ends, if that needs a witness.
int witness_connections();

}  // namespace ddp::srun_plugin
