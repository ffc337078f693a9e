// all_gather, gather and scatter. Between domains one message holds the parts of a whole domain, so bytes cross the
// slow link once; temporary memory has the parts by domain, then by rank, and each rank puts them where they belong.
#include <cstring>

#include "collectives/hierarchy/plan.hpp"

namespace ddp::collectives::hierarchy {
namespace {

std::size_t bytes_of(const Job& job, std::size_t elements) { return elements * job.element_bytes(); }

/// Elements of this segment that come from a whole domain.
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

// Temporary memory of an all_gather: at leaders what the own domain gathers, behind it what all have.

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
  if (made.count == 0) return;  // the others' parts are longer
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
  std::vector<std::byte*> next;  // of each domain
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

// gather and scatter: the root exchanges messages with the other domains' leaders. Temporary memory: at the root the
// parts of all ranks by domain, at a leader those of its own domain.

std::size_t own_slice(const Job& job, std::size_t segment) { return job.slice(segment, job.operation().count).count; }

/// Where the parts of a domain lie at the root.
std::byte* block_at_root(const Job& job, std::size_t segment, int domain) {
  std::size_t ranks = 0;
  for (int before = 0; before < domain; ++before) ranks += job.layout().members_of(before);
  return job.temporary(segment, ranks * own_slice(job, segment));
}

/// Where those of the own domain lie at the root, or its leader.
std::byte* own_block(const Job& job, std::size_t segment) {
  return job.operation().root == job.layout().rank() ? block_at_root(job, segment, job.layout().domain())
                                                     : job.temporary(segment);
}

/// Who gathers or scatters in the own domain.
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
