// A collective as one rank executes it: messages to receive and to send, and arithmetic in between, each list in the
// order in which its elements may begin. Everything that a rank may receive has a place before it can arrive, but for
// the bounded staging of large reductions; so no order of arrival stops it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ddp/operation.hpp>

#include "collectives/reduce_kernels.hpp"
#include "collectives/tcp/link.hpp"

namespace ddp::collectives::tcp {

struct ReceiveStep {
  Incoming message;
  int peer = -1;                  ///< rank of the context
  std::size_t after_actions = 0;  ///< posted when so many actions are done
};

struct SendStep {
  Outgoing message;
  int peer = -1;
  std::size_t after_receives = 0;  ///< when the first so many of Plan::receives have arrived,
  std::size_t after_actions = 0;   ///< and so many actions are done
};

/// Combines Plan::sources [first_source, first_source + num_sources) into `to`, or copies.
struct Action {
  std::size_t after_receives = 0;
  bool after_all_sends = false;  ///< `to` is read by sends
  std::byte* to = nullptr;
  std::size_t first_source = 0;
  std::size_t num_sources = 1;
  std::size_t elements = 0;  ///< to combine; 0: it copies
  std::size_t bytes = 0;     ///< to copy
};

struct Plan {
  std::vector<ReceiveStep> receives;  ///< what others wait for, in order
  std::vector<ReceiveStep> sinks;     ///< what nothing but the end waits for
  std::vector<SendStep> sends;
  std::vector<Action> actions;
  std::vector<const void*> sources;
  std::optional<Reduction> reduction;
  std::size_t element_bytes = 1;

  void clear();
  void receive(int peer, std::uint32_t step, std::byte* to, std::size_t bytes, std::size_t after_actions = 0);
  void sink(int peer, std::uint32_t step, std::byte* to, std::size_t bytes, std::size_t after_actions = 0);
  void send(int peer, std::uint32_t step, const std::byte* from, std::size_t bytes, std::size_t after_receives = 0,
            std::size_t after_actions = 0);
  void copy(std::byte* to, const void* from, std::size_t bytes, std::size_t after_receives,
            bool after_all_sends = false);
  /// The sources follow by source().
  void combine(std::byte* to, std::size_t elements, std::size_t after_receives, bool after_all_sends = false);
  void source(const void* from);

  /// Memory of at least so many bytes, until the next call.
  std::byte* scratch(std::size_t bytes);

 private:
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
};

/// Fills @p plan. May copy: what an operation of a single rank, and the own part, need.
void make_plan(const Operation& operation, int rank, int size, Plan& plan);
/// Those of all_reduce, reduce and reduce_scatter.
void plan_reduction(const Operation& operation, int rank, int size, Plan& plan);

/// All ranks' parts of @p part_bytes, that of this rank first, then those of the ranks after it: into @p blocks, which
/// holds this rank's already. ceil(log2(size)) messages each way (Bruck's algorithm).
void plan_bruck(std::byte* blocks, std::size_t part_bytes, int rank, int size, Plan& plan);
/// No data, only synchronization: ceil(log2(size)) empty messages each way (dissemination).
void plan_barrier(int rank, int size, Plan& plan);

}  // namespace ddp::collectives::tcp
