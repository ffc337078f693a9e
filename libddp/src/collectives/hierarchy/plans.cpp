// Plans broadcast, barrier and all_to_all: the operations that need no rearranging.
#include <cstring>

#include "collectives/hierarchy/plan.hpp"
#include "collectives/reduce_kernels.hpp"

namespace ddp::collectives::hierarchy {
namespace {

/// Broadcasts in a domain: from the root in its own, from the leader in the others.
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

// all_to_all sends straight from each rank to each other, over the innermost part that both share.

bool in_place(const Operation& operation) { return operation.input.data() == operation.output.data(); }
std::size_t block_of(const Job& job) { return job.operation().count / static_cast<std::size_t>(job.layout().size()); }

/// Where this segment of the data for @p rank lies.
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
  for (int step = 1; step < layout.size(); ++step) {  // spreads the load: not all to the same rank at once
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

// Reductions go to the leader within a node, then among the leaders. So every element is bracketed by domains whatever
// its size: first the ranks of each domain, then the domains, both in their order.

namespace {

void copy_or_divide(const Job& job, std::byte* to, const std::byte* from, std::size_t count) {
  if (job.divides_before()) {
    divide_into(to, from, job.operation().dtype, count, job.divisor());
  } else if (to != from) {
    std::memmove(to, from, count * job.element_bytes());
  }
}

/// A segment of the values where the reduction works: in the output, if this rank has one.
struct Values {
  std::byte* at;
  std::size_t count;
};
Values values_of(const Job& job, std::size_t segment) {
  const Slice part = job.slice(segment, job.operation().count);
  return {job.slot_bytes() == 0 ? job.output(part.first) : job.temporary(segment), part.count};
}

void load(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Values values = values_of(job, segment);
  copy_or_divide(job, values.at, job.input(job.slice(segment, job.operation().count).first), values.count);
}

void divide_result(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Values values = values_of(job, segment);
  divide(values.at, job.operation().dtype, values.count, job.divisor());
}

template <OperationKind kKind>
void in_place(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Values values = values_of(job, segment);
  operations.push_back(job.in_place(kKind, values.at, values.count, 0));
}

void reduce_to_roots_leader(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Values values = values_of(job, segment);
  const int domain = job.layout().domain_of(job.operation().root);
  operations.push_back(job.in_place(OperationKind::reduce, values.at, values.count, domain));
}

/// From the leader to the root.
void hand_over(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Values values = values_of(job, segment);
  const bool root = job.operation().root == job.layout().rank();
  operations.push_back(job.transfer(root ? OperationKind::recv : OperationKind::send, values.at, values.count,
                                    root ? 0 : job.layout().index_of(job.operation().root), kOwnTag));
}

/// The first stages of reduce and all_reduce. @return the last one's bit.
std::uint8_t reduce_in_domain(Job& job) {
  const Operation& operation = job.operation();
  std::uint8_t last = 0;
  if (job.divides_before() || operation.input.data() != operation.output.data()) {
    last = job.add(Lane::local, 0, last, load);
  }
  if (job.layout().neighbours() > 1) last = job.add(Lane::inner, 0, last, in_place<OperationKind::reduce>);
  return last;
}

// reduce_scatter: temporary memory holds the parts by domain, then by rank. After those come the blocks that the
// leaders of other domains send to this one's, one block per domain.

std::size_t elements_before(const Layout& layout, int domain, std::size_t each) {
  std::size_t ranks = 0;
  for (int before = 0; before < domain; ++before) ranks += layout.members_of(before);
  return ranks * each;
}

void pack(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Slice part = job.slice(segment, job.operation().count);
  std::byte* to = job.temporary(segment);
  for (int domain = 0; domain < job.layout().domains(); ++domain) {
    for (const int rank : job.layout().members(domain)) {
      const std::size_t from = static_cast<std::size_t>(rank) * job.operation().count + part.first;
      copy_or_divide(job, to, job.input(from), part.count);
      to += part.count * job.element_bytes();
    }
  }
}

void reduce_packed(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Slice part = job.slice(segment, job.operation().count);
  const std::size_t count = part.count * static_cast<std::size_t>(job.layout().size());
  operations.push_back(job.in_place(OperationKind::reduce, job.temporary(segment), count, 0));
}

/// This domain's values as @p domain has summed them.
std::byte* contribution(const Job& job, std::size_t segment, int domain) {
  const Layout& layout = job.layout();
  const std::size_t count = job.slice(segment, job.operation().count).count;
  if (domain == layout.domain()) return job.temporary(segment, elements_before(layout, domain, count));
  const std::size_t received = static_cast<std::size_t>(domain) * layout.neighbours();
  return job.temporary(segment, (static_cast<std::size_t>(layout.size()) + received) * count);
}

void exchange(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Layout& layout = job.layout();
  const std::size_t count = job.slice(segment, job.operation().count).count;
  for (int domain = 0; domain < layout.domains(); ++domain) {
    if (domain == layout.domain()) continue;
    operations.push_back(
        job.transfer(OperationKind::recv, contribution(job, segment, domain), count * layout.neighbours(), domain, 0));
    operations.push_back(job.transfer(OperationKind::send,
                                      job.temporary(segment, elements_before(layout, domain, count)),
                                      count * layout.members_of(domain), domain, 0));
  }
}

/// Sums in the domains' order. The sum lies where the first domain's contribution lay.
void combine(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Layout& layout = job.layout();
  std::vector<const void*> sources;
  for (int domain = 0; domain < layout.domains(); ++domain) sources.push_back(contribution(job, segment, domain));
  const std::size_t count = job.slice(segment, job.operation().count).count * layout.neighbours();
  Reduction(job.operation(), layout.size())
      .combine(contribution(job, segment, 0), sources, count, collectives::Stage::last);
}

void scatter_sums(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Slice part = job.slice(segment, job.operation().count);
  Operation made = job.collective(OperationKind::scatter, part.count, 0);
  if (job.layout().leads()) {
    made.input = job.view(contribution(job, segment, 0), part.count * job.layout().neighbours());
  }
  made.output = job.view(job.output(part.first), part.count);
  operations.push_back(std::move(made));
}

void copy_sum(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Slice part = job.slice(segment, job.operation().count);
  std::memcpy(job.output(part.first), contribution(job, segment, 0), part.count * job.element_bytes());
}

}  // namespace

void plan_all_reduce(Job& job, std::size_t segment_bytes) {
  const Layout& layout = job.layout();
  job.cut(job.operation().count, 1, segment_bytes);
  std::uint8_t last = reduce_in_domain(job);
  if (layout.leads()) {
    if (layout.domains() > 1) last = job.add(Lane::outer, 1, last, in_place<OperationKind::all_reduce>);
    if (job.divides_after()) last = job.add(Lane::local, 1, last, divide_result);
  }
  if (layout.neighbours() > 1) job.add(Lane::inner, 2, last, in_place<OperationKind::broadcast>);
}

void plan_reduce(Job& job, std::size_t segment_bytes) {
  const Layout& layout = job.layout();
  const int root = job.operation().root;
  job.cut(job.operation().count, 1, segment_bytes);
  if (job.operation().output.numel() == 0) job.reserve(1);  // not the root: only the root must have an output
  std::uint8_t last = reduce_in_domain(job);
  if (layout.leads() && layout.domains() > 1) last = job.add(Lane::outer, 1, last, reduce_to_roots_leader);
  const bool leads_root = layout.leads() && layout.domain_of(root) == layout.domain();
  if (layout.index_of(root) != 0 && (leads_root || root == layout.rank())) {
    last = job.add(Lane::inner, 2, last, hand_over, true);
  }
  if (root == layout.rank() && job.divides_after()) job.add(Lane::local, 2, last, divide_result);
}

void plan_reduce_scatter(Job& job, std::size_t segment_bytes) {
  const Layout& layout = job.layout();
  const auto ranks = static_cast<std::size_t>(layout.size());
  const auto domains = static_cast<std::size_t>(layout.domains());
  job.cut(job.operation().count, (ranks + domains * layout.most_members()) / 2 + 1, segment_bytes);
  job.reserve(ranks + (layout.leads() ? domains * layout.neighbours() : 0));
  std::uint8_t last = job.add(Lane::local, 0, 0, pack);
  if (layout.neighbours() > 1) last = job.add(Lane::inner, 0, last, reduce_packed);
  if (layout.leads()) {
    if (domains > 1) last = job.add(Lane::outer, 1, last, exchange, true);
    last = job.add(Lane::local, 1, last, combine);
  }
  if (layout.neighbours() > 1) {
    job.add(Lane::inner, 2, last, scatter_sums);
  } else {
    job.add(Lane::local, 2, last, copy_sum);
  }
}

// all_gather, gather and scatter. Between domains one message holds the parts of a whole domain, so bytes cross the
// slow link once; temporary memory has the parts by domain, then by rank, and each rank puts them where they belong.

namespace {

std::size_t bytes_of(const Job& job, std::size_t elements) { return elements * job.element_bytes(); }

/// Elements of this segment that a whole domain contributes.
std::size_t from_domain(const Job& job, std::size_t segment, int domain) {
  std::size_t sum = 0;
  for (const int rank : job.layout().members(domain)) sum += job.slice(segment, job.part_of(rank)).count;
  return sum;
}

std::vector<std::size_t> from_domains(const Job& job, std::size_t segment) {
  std::vector<std::size_t> counts;
  for (int domain = 0; domain < job.layout().domains(); ++domain) counts.push_back(from_domain(job, segment, domain));
  return counts;
}

// Temporary memory of an all_gather: at leaders what their domain gathers, followed by what all domains gather.

std::byte* gathered_here(const Job& job, std::size_t segment) { return job.temporary(segment); }
std::byte* gathered_all(const Job& job, std::size_t segment) {
  const Layout& layout = job.layout();
  return job.temporary(segment, layout.domains() == 1 ? 0 : job.length() * layout.neighbours());
}

void gather_here(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Layout& layout = job.layout();
  const Slice own = job.slice(segment, job.part_of(layout.rank()));
  Operation made = job.collective(OperationKind::all_gather_v, 0);
  for (const int rank : layout.members(layout.domain())) {
    made.counts.push_back(job.slice(segment, job.part_of(rank)).count);
    made.count += made.counts.back();
  }
  if (made.count == 0) return;  // the other ranks' parts are longer
  made.input = job.view(job.input(own.first), own.count);
  made.output = job.view(gathered_here(job, segment), made.count);
  operations.push_back(std::move(made));
}

void copy_here(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Slice own = job.slice(segment, job.part_of(job.layout().rank()));
  if (own.count > 0) std::memcpy(gathered_here(job, segment), job.input(own.first), bytes_of(job, own.count));
}

void gather_all(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  Operation made = job.collective(OperationKind::all_gather_v, 0);
  made.counts = from_domains(job, segment);
  for (const std::size_t count : made.counts) made.count += count;
  made.input = job.view(gathered_here(job, segment), made.counts[static_cast<std::size_t>(job.layout().domain())]);
  made.output = job.view(gathered_all(job, segment), made.count);
  operations.push_back(std::move(made));
}

void spread_all(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  std::size_t count = 0;
  for (const std::size_t each : from_domains(job, segment)) count += each;
  operations.push_back(job.in_place(OperationKind::broadcast, gathered_all(job, segment), count, 0));
}

void put_in_place(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Layout& layout = job.layout();
  std::vector<std::byte*> next;  // by domain
  std::byte* from = gathered_all(job, segment);
  for (const std::size_t count : from_domains(job, segment)) {
    next.push_back(from);
    from += bytes_of(job, count);
  }
  std::size_t before = 0;
  for (int rank = 0; rank < layout.size(); ++rank) {
    const Slice part = job.slice(segment, job.part_of(rank));
    std::byte*& source = next[static_cast<std::size_t>(layout.domain_of(rank))];
    if (part.count > 0) std::memcpy(job.output(before + part.first), source, bytes_of(job, part.count));
    source += bytes_of(job, part.count);
    before += job.part_of(rank);
  }
}

// gather and scatter: the root exchanges messages with the other domains' leaders. Temporary memory holds the parts of
// all ranks by domain at the root, and those of its own domain at a leader.

std::size_t own_slice(const Job& job, std::size_t segment) { return job.slice(segment, job.operation().count).count; }

/// Where the parts of a domain lie at the root.
std::byte* block_at_root(const Job& job, std::size_t segment, int domain) {
  std::size_t ranks = 0;
  for (int before = 0; before < domain; ++before) ranks += job.layout().members_of(before);
  return job.temporary(segment, ranks * own_slice(job, segment));
}

/// Where the parts of the own domain lie at the root, or at its leader.
std::byte* own_block(const Job& job, std::size_t segment) {
  return job.operation().root == job.layout().rank() ? block_at_root(job, segment, job.layout().domain())
                                                     : job.temporary(segment);
}

/// The rank that gathers or scatters in the own domain.
int collector(const Job& job) {
  const Layout& layout = job.layout();
  const int root = job.operation().root;
  return layout.domain_of(root) == layout.domain() ? layout.index_of(root) : 0;
}

template <OperationKind kKind>
void in_domain(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Layout& layout = job.layout();
  const Slice part = job.slice(segment, job.operation().count);
  Operation made = job.collective(kKind, part.count, collector(job));
  constexpr bool kGathers = kKind == OperationKind::gather;
  (kGathers ? made.input : made.output) =
      job.view(kGathers ? job.input(part.first) : job.output(part.first), part.count);
  if (layout.index() == collector(job)) {
    (kGathers ? made.output : made.input) = job.view(own_block(job, segment), part.count * layout.neighbours());
  }
  operations.push_back(std::move(made));
}

void copy_to_block(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Slice part = job.slice(segment, job.operation().count);
  std::memcpy(own_block(job, segment), job.input(part.first), bytes_of(job, part.count));
}

void copy_from_block(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Slice part = job.slice(segment, job.operation().count);
  std::memcpy(job.output(part.first), own_block(job, segment), bytes_of(job, part.count));
}

/// The root's end: a message from or to each other leader.
template <OperationKind kKind>
void with_leaders(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const Layout& layout = job.layout();
  const std::size_t count = own_slice(job, segment);
  for (int domain = 0; domain < layout.domains(); ++domain) {
    if (domain == layout.domain()) continue;
    operations.push_back(job.transfer(kKind, block_at_root(job, segment, domain), count * layout.members_of(domain),
                                      layout.leader(domain), kOwnTag));
  }
}

/// A leader's end.
template <OperationKind kKind>
void with_root(const Job& job, std::size_t segment, std::vector<Operation>& operations) {
  const std::size_t count = own_slice(job, segment) * job.layout().neighbours();
  operations.push_back(job.transfer(kKind, own_block(job, segment), count, job.operation().root, kOwnTag));
}

template <bool kPack>
void rearrange(const Job& job, std::size_t segment, std::vector<Operation>& /*local*/) {
  const Layout& layout = job.layout();
  const Slice part = job.slice(segment, job.operation().count);
  std::byte* packed = job.temporary(segment);
  for (int domain = 0; domain < layout.domains(); ++domain) {
    for (const int rank : layout.members(domain)) {
      const std::size_t element = static_cast<std::size_t>(rank) * job.operation().count + part.first;
      if constexpr (kPack) {
        std::memcpy(packed, job.input(element), bytes_of(job, part.count));
      } else {
        std::memcpy(job.output(element), packed, bytes_of(job, part.count));
      }
      packed += bytes_of(job, part.count);
    }
  }
}

void reserve_blocks(Job& job, std::size_t segment_bytes) {
  const Layout& layout = job.layout();
  const auto ranks = static_cast<std::size_t>(layout.size());
  job.cut(job.operation().count, ranks, segment_bytes);
  if (job.operation().root == layout.rank()) {
    job.reserve(ranks);
  } else if (layout.index() == collector(job)) {
    job.reserve(layout.neighbours());
  }
}

}  // namespace

void plan_all_gather(Job& job, std::size_t segment_bytes) {
  const Layout& layout = job.layout();
  const auto ranks = static_cast<std::size_t>(layout.size());
  std::size_t longest = 0;
  for (int rank = 0; rank < layout.size(); ++rank) longest = std::max(longest, job.part_of(rank));
  job.cut(longest, ranks, segment_bytes);
  job.reserve(ranks + (layout.domains() > 1 ? layout.neighbours() : 0));
  std::uint8_t last =
      layout.neighbours() > 1 ? job.add(Lane::inner, 0, 0, gather_here) : job.add(Lane::local, 0, 0, copy_here);
  if (layout.domains() > 1) {
    if (layout.leads()) last = job.add(Lane::outer, 1, last, gather_all);
    if (layout.neighbours() > 1) last = job.add(Lane::inner, 2, last, spread_all);
  }
  job.add(Lane::local, 2, last, put_in_place);
}

void plan_gather(Job& job, std::size_t segment_bytes) {
  const Layout& layout = job.layout();
  const int root = job.operation().root;
  reserve_blocks(job, segment_bytes);
  const bool collects = layout.index() == collector(job);
  unsigned ready = 0;
  if (layout.neighbours() > 1) {
    ready = job.add(Lane::inner, 0, 0, in_domain<OperationKind::gather>);
  } else {
    ready = job.add(Lane::local, 0, 0, copy_to_block);
  }
  if (root == layout.rank()) {
    if (layout.domains() > 1) ready |= job.add(Lane::flat, 1, 0, with_leaders<OperationKind::recv>, true);
    job.add(Lane::local, 2, ready, rearrange<false>);
  } else if (collects && layout.domain_of(root) != layout.domain()) {
    job.add(Lane::flat, 1, ready, with_root<OperationKind::send>, true);
  }
}

void plan_scatter(Job& job, std::size_t segment_bytes) {
  const Layout& layout = job.layout();
  const int root = job.operation().root;
  reserve_blocks(job, segment_bytes);
  const bool collects = layout.index() == collector(job);
  std::uint8_t ready = 0;
  if (root == layout.rank()) {
    ready = job.add(Lane::local, 0, 0, rearrange<true>);
    if (layout.domains() > 1) job.add(Lane::flat, 1, ready, with_leaders<OperationKind::send>, true);
  } else if (collects && layout.domain_of(root) != layout.domain()) {
    ready = job.add(Lane::flat, 1, 0, with_root<OperationKind::recv>, true);
  }
  if (layout.neighbours() > 1) {
    job.add(Lane::inner, 2, ready, in_domain<OperationKind::scatter>);
  } else {
    job.add(Lane::local, 2, ready, copy_from_block);
  }
}

}  // namespace ddp::collectives::hierarchy
