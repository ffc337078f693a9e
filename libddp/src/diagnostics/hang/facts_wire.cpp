// Facts of a host on their way to the process that judges the job.
#include <cstdint>

#include "base/byte_stream.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {
namespace {

constexpr std::uint8_t kWireVersion = 3;

using base::ByteReader;
using base::ByteWriter;
using flight::FlightView;

void write_seconds(ByteWriter& to, double seconds) { to.integer(static_cast<std::int64_t>(seconds * 1000)); }
double read_seconds(ByteReader& from) { return static_cast<double>(from.integer<std::int64_t>()) / 1000; }
bool read_flag(ByteReader& from) { return from.integer<std::uint8_t>() != 0; }
void write_flag(ByteWriter& to, bool flag) { to.integer(static_cast<std::uint8_t>(flag)); }
void write_number(ByteWriter& to, int number) { to.integer(static_cast<std::int32_t>(number)); }
int read_number(ByteReader& from) { return from.integer<std::int32_t>(); }
/// Each thing takes bytes, so a wrong count ends in a reader error.
void write_count(ByteWriter& to, std::size_t count) { to.integer(static_cast<std::uint32_t>(count)); }
std::uint32_t read_count(ByteReader& from) { return from.integer<std::uint32_t>(); }

void write_call(ByteWriter& to, const FlightView::Call& call) {
  to.text(call.group).text(call.operation).integer(call.sequence).integer(call.count);
  write_flag(to, call.transfer);
  write_number(to, call.peer);
  to.integer(static_cast<std::uint8_t>(call.state));
  write_seconds(to, call.age_s);
  write_seconds(to, call.end_s);
  to.text(call.label);
}

FlightView::Call read_call(ByteReader& from) {
  FlightView::Call call;
  call.group = from.text();
  call.operation = from.text();
  call.sequence = from.integer<std::uint64_t>();
  call.count = from.integer<std::uint64_t>();
  call.transfer = read_flag(from);
  call.peer = read_number(from);
  call.state = static_cast<flight::FlightState>(from.integer<std::uint8_t>() % 4);
  call.age_s = read_seconds(from);
  call.end_s = read_seconds(from);
  call.label = from.text();
  return call;
}

void write_view(ByteWriter& to, const FlightView& view) {
  write_number(to, view.pid);
  write_number(to, view.rank);
  write_number(to, view.world_size);
  to.integer(static_cast<std::uint8_t>(view.phase));
  write_seconds(to, view.phase_s);
  to.integer(view.recorded).integer(view.finished);
  write_count(to, view.groups.size());
  for (const FlightView::Group& group : view.groups) {
    to.text(group.name).text(group.backend);
    write_number(to, group.rank);
    write_number(to, group.size);
    write_count(to, group.members.size());
    for (const int member : group.members) write_number(to, member);
    to.integer(group.last_queued);
  }
  write_count(to, view.unfinished.size());
  for (const FlightView::Call& call : view.unfinished) write_call(to, call);
  write_flag(to, view.last.has_value());
  if (view.last) write_call(to, *view.last);
}

FlightView read_view(ByteReader& from) {
  FlightView view;
  view.pid = read_number(from);
  view.rank = read_number(from);
  view.world_size = read_number(from);
  view.phase = static_cast<flight::FlightPhase>(from.integer<std::uint8_t>() % 4);
  view.phase_s = read_seconds(from);
  view.recorded = from.integer<std::uint64_t>();
  view.finished = from.integer<std::uint64_t>();
  for (std::uint32_t groups = read_count(from); groups > 0; --groups) {
    FlightView::Group& group = view.groups.emplace_back();
    group.name = from.text();
    group.backend = from.text();
    group.rank = read_number(from);
    group.size = read_number(from);
    for (std::uint32_t members = read_count(from); members > 0; --members) group.members.push_back(read_number(from));
    group.last_queued = from.integer<std::uint64_t>();
  }
  for (std::uint32_t calls = read_count(from); calls > 0; --calls) view.unfinished.push_back(read_call(from));
  if (read_flag(from)) view.last = read_call(from);
  return view;
}

void write_rank(ByteWriter& to, const RankFacts& rank) {
  write_number(to, rank.rank);
  write_number(to, rank.world_size);
  to.text(rank.host);
  write_number(to, rank.pid);
  to.text(rank.program);
  to.integer(static_cast<std::uint8_t>(rank.state));
  to.text(rank.call).text(rank.kernel);
  write_seconds(to, rank.cores);
  for (const bool flag : {rank.swaps, rank.steady, rank.moves, rank.links_libddp}) write_flag(to, flag);
  to.integer(static_cast<std::uint8_t>(rank.flight_source));
  write_flag(to, rank.flight.has_value());
  if (rank.flight) write_view(to, *rank.flight);
}

RankFacts read_rank(ByteReader& from) {
  RankFacts rank;
  rank.rank = read_number(from);
  rank.world_size = read_number(from);
  rank.host = from.text();
  rank.pid = read_number(from);
  rank.program = from.text();
  rank.state = static_cast<char>(from.integer<std::uint8_t>());
  rank.call = from.text();
  rank.kernel = from.text();
  rank.cores = read_seconds(from);
  for (bool* flag : {&rank.swaps, &rank.steady, &rank.moves, &rank.links_libddp}) *flag = read_flag(from);
  rank.flight_source = static_cast<FlightSource>(from.integer<std::uint8_t>() % 3);
  if (read_flag(from)) rank.flight = read_view(from);
  return rank;
}

}  // namespace

Bytes encode(const HostFacts& facts) {
  ByteWriter to;
  to.integer(kWireVersion).text(facts.host);
  write_count(to, facts.ranks.size());
  for (const RankFacts& rank : facts.ranks) write_rank(to, rank);
  write_count(to, facts.notes.size());
  for (const std::string& note : facts.notes) to.text(note);
  write_count(to, facts.nccl.size());
  for (const NcclTrouble& trouble : facts.nccl) {
    to.text(trouble.text);
    write_count(to, trouble.behind.size());
    for (const pid_t pid : trouble.behind) write_number(to, pid);
  }
  write_count(to, facts.stacks.groups.size());
  for (const StackGroup& group : facts.stacks.groups) {
    to.text(group.tool).text(group.text);
    write_count(to, group.ranks.size());
    for (const int rank : group.ranks) write_number(to, rank);
  }
  write_count(to, facts.stacks.notes.size());
  for (const StackNote& note : facts.stacks.notes) to.text(note.text);
  return std::move(to).bytes();
}

HostFacts decode_host_facts(std::span<const std::byte> bytes) {
  ByteReader from{bytes, "facts of a host"};
  if (from.integer<std::uint8_t>() != kWireVersion) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading the facts of a host",
                 .cause = "they are of another version",
                 .hint = "run the same ddp-info on all hosts"}};
  }
  HostFacts facts;
  facts.host = from.text();
  for (std::uint32_t ranks = read_count(from); ranks > 0; --ranks) facts.ranks.push_back(read_rank(from));
  for (std::uint32_t notes = read_count(from); notes > 0; --notes) facts.notes.push_back(from.text());
  for (std::uint32_t troubles = read_count(from); troubles > 0; --troubles) {
    NcclTrouble& trouble = facts.nccl.emplace_back();
    trouble.text = from.text();
    for (std::uint32_t pids = read_count(from); pids > 0; --pids) trouble.behind.push_back(read_number(from));
  }
  for (std::uint32_t groups = read_count(from); groups > 0; --groups) {
    StackGroup group{.tool = from.text(), .text = from.text()};
    for (std::uint32_t ranks = read_count(from); ranks > 0; --ranks) group.ranks.push_back(read_number(from));
    facts.stacks.add(std::move(group), kMaxNodeStackBytes);
  }
  for (std::uint32_t notes = read_count(from); notes > 0; --notes) facts.stacks.note(facts.host, from.text());
  from.expect_end();
  return facts;
}

}  // namespace ddp::diagnostics
