// Broadcast, barrier and all_to_all: what needs no rearranging.
#include <cstring>

#include "collectives/hierarchy/plan.hpp"

namespace ddp::collectives::hierarchy {
namespace {

/// In a domain: from the root in its own, from the leader in the others.
void spread_in_domain(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Layout& layout = job.layout();
  const Slice part = job.slice(segment, job.operation().count);
  const int root = job.operation().root;
  const int source = layout.domain_of(root) == layout.domain() ? layout.index_of(root) : 0;
  operations.push_back(job.in_place(OperationKind::broadcast, job.output(part.first), part.count, source));
}

void spread_among_leaders(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Slice part = job.slice(segment, job.operation().count);
  const int domain = job.layout().domain_of(job.operation().root);
  operations.push_back(job.in_place(OperationKind::broadcast, job.output(part.first), part.count, domain));
}

void copy_in(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Slice part = job.slice(segment, job.operation().count);
  std::memmove(job.output(part.first), job.input(part.first), part.count * job.element_bytes());
}

void meet(const Job& /*nothing moves*/, std::size_t /*only one*/, std::vector<Operation>& operations) {
  operations.emplace_back();  // a barrier
}

// all_to_all: straight from each rank to each other, by the part that both are in.

bool in_place(const Operation& operation) { return operation.input.data() == operation.output.data(); }

std::size_t block_of(const Job& job) { return job.operation().count / static_cast<std::size_t>(job.layout().size()); }

/// Where this segment of what goes to @p rank lies.
std::byte* outgoing(const Job& job, std::size_t segment, int rank) {
  const auto peer = static_cast<std::size_t>(rank);
  const Slice part = job.slice(segment, block_of(job));
  return in_place(job.operation()) ? job.temporary(segment, peer * part.count)
                                   : job.input(peer * block_of(job) + part.first);
}

std::byte* incoming(const Job& job, std::size_t segment, int rank) {
  return job.output(static_cast<std::size_t>(rank) * block_of(job) + job.slice(segment, block_of(job)).first);
}

void keep_input(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Slice part = job.slice(segment, block_of(job));
  for (int rank = 0; rank < job.layout().size(); ++rank) {
    const std::size_t from = static_cast<std::size_t>(rank) * block_of(job) + part.first;
    std::memcpy(outgoing(job, segment, rank), job.input(from), part.count * job.element_bytes());
  }
}

void swap_with(const Job& job, std::size_t segment, int rank, int peer, std::vector<Operation>& operations) {
  const std::size_t count = job.slice(segment, block_of(job)).count;
  operations.push_back(job.transfer(OperationKind::recv, incoming(job, segment, rank), count, peer, kOwnTag));
  operations.push_back(job.transfer(OperationKind::send, outgoing(job, segment, rank), count, peer, kOwnTag));
}

void swap_between_domains(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Layout& layout = job.layout();
  for (int step = 1; step < layout.size(); ++step) {  // not all at once to the same rank
    const int rank = (layout.rank() + step) % layout.size();
    if (layout.domain_of(rank) != layout.domain()) swap_with(job, segment, rank, rank, operations);
  }
}

void swap_in_domain(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Layout& layout = job.layout();
  for (const int rank : layout.members(layout.domain())) {
    if (rank != layout.rank()) swap_with(job, segment, rank, layout.index_of(rank), operations);
  }
}

void keep_own(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const int own = job.layout().rank();
  const std::size_t bytes = job.slice(segment, block_of(job)).count * job.element_bytes();
  std::memcpy(incoming(job, segment, own), outgoing(job, segment, own), bytes);
}

}  // namespace

void plan_broadcast(Job& job, std::size_t segment_bytes) {
  const Layout& layout = job.layout();
  const Operation& operation = job.operation();
  job.cut(operation.count, 1, segment_bytes);
  const bool roots_domain = layout.domain_of(operation.root) == layout.domain();
  std::uint8_t last = 0;
  if (operation.root == layout.rank() && operation.input.data() != operation.output.data()) {
    last = job.add(Lane::local, 0, last, copy_in);
  }
  if (roots_domain && layout.neighbours() > 1) last = job.add(Lane::inner, 0, last, spread_in_domain);
  if (layout.leads() && layout.domains() > 1) last = job.add(Lane::outer, 1, last, spread_among_leaders);
  if (!roots_domain && layout.neighbours() > 1) job.add(Lane::inner, 2, last, spread_in_domain);
}

void plan_barrier(Job& job) {
  const Layout& layout = job.layout();
  std::uint8_t last = 0;
  if (layout.neighbours() > 1) last = job.add(Lane::inner, 0, last, meet);
  if (layout.domains() == 1) return;
  if (layout.leads()) last = job.add(Lane::outer, 1, last, meet);
  if (layout.neighbours() > 1) job.add(Lane::inner, 2, last, meet);
}

void plan_all_to_all(Job& job, std::size_t segment_bytes) {
  const Layout& layout = job.layout();
  const auto ranks = static_cast<std::size_t>(layout.size());
  job.cut(block_of(job), in_place(job.operation()) ? ranks : 1, segment_bytes);
  std::uint8_t ready = 0;
  if (in_place(job.operation())) {
    job.reserve(ranks);
    ready = job.add(Lane::local, 0, 0, keep_input);
  }
  if (layout.domains() > 1) job.add(Lane::flat, 0, ready, swap_between_domains, true);
  if (layout.neighbours() > 1) job.add(Lane::inner, 0, ready, swap_in_domain, true);
  job.add(Lane::local, 0, ready, keep_own);
}

}  // namespace ddp::collectives::hierarchy
