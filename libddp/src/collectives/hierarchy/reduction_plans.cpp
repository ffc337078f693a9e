// Reductions: in the node to its leader, then among the leaders. So every element is bracketed by domains, whatever the
// size: first the ranks of each domain, then the domains, both in their order.
#include <cstring>

#include "collectives/hierarchy/plan.hpp"
#include "collectives/reduce_kernels.hpp"

namespace ddp::collectives::hierarchy {
namespace {

void copy_or_divide(const Job& job, std::byte* to, const std::byte* from, std::size_t count) {
  if (job.divides_before()) {
    divide_into(to, from, job.operation().dtype, count, job.divisor());
  } else if (to != from) {
    std::memmove(to, from, count * job.element_bytes());
  }
}

/// A segment of the values, where the reduction works: in the output, if this rank has one.
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

// reduce_scatter: parts lie in temporary memory by domain, then by rank. Behind them what the leaders of other domains
// send to this one's, a block a domain.

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

/// In the domains' order. The sum lies where the first domain's contribution lay.
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
  if (job.operation().output.numel() == 0) job.reserve(1);  // not the root: only it must have an output
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

}  // namespace ddp::collectives::hierarchy
