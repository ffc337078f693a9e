#include "collectives/group_status.hpp"

#include "base/byte_stream.hpp"

namespace ddp::collectives {
namespace {

constexpr std::uint8_t kQuestion = 1;
constexpr std::uint8_t kVerdict = 2;
constexpr std::uint8_t kProposal = 3;
constexpr auto kLastCode = ErrorCode::aborted;

void write_ranks(base::ByteWriter& writer, const std::vector<int>& ranks) {
  writer.integer(static_cast<std::uint32_t>(ranks.size()));
  for (const int rank : ranks) writer.integer(rank);
}

std::vector<int> read_ranks(base::ByteReader& reader) {
  std::vector<int> ranks;
  const auto count = reader.integer<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) ranks.push_back(reader.integer<int>());
  return ranks;
}

void write_error(base::ByteWriter& writer, const Error& error) {
  writer.integer(static_cast<std::uint8_t>(error.code()))
      .text(error.attempted())
      .text(error.cause())
      .text(error.native())
      .text(error.hint());
  write_ranks(writer, error.ranks());
}

Error read_error(base::ByteReader& reader) {
  const auto code = reader.integer<std::uint8_t>();
  ErrorDetail detail{
      .code = code <= static_cast<std::uint8_t>(kLastCode) ? static_cast<ErrorCode>(code) : ErrorCode::protocol,
      .attempted = reader.text(),
      .cause = reader.text(),
      .native = reader.text(),
      .hint = reader.text()};
  detail.ranks = read_ranks(reader);
  return Error{std::move(detail)};
}

}  // namespace

Bytes encode(const StatusQuestion& question) {
  return base::ByteWriter()
      .integer(kQuestion)
      .integer(question.sequence)
      .integer(static_cast<std::uint8_t>(question.neighbours ? 1 : 0))
      .bytes();
}

Bytes encode(const Verdict& verdict) {
  base::ByteWriter writer;
  writer.integer(kVerdict);
  write_error(writer, verdict.error);
  return std::move(writer).bytes();
}

Bytes encode(const Proposal& proposal) {
  base::ByteWriter writer;
  writer.integer(kProposal);
  write_error(writer, proposal.error);
  return std::move(writer).bytes();
}

Bytes encode(const ProposalAnswer& answer) {
  base::ByteWriter writer;
  writer.integer(static_cast<std::uint8_t>(answer.decided ? 1 : 0));
  write_error(writer, answer.error);
  return std::move(writer).bytes();
}

Bytes encode(const StatusAnswer& answer) {
  base::ByteWriter writer;
  writer.integer(answer.last_issued)
      .integer(answer.fingerprint)
      .text(answer.description)
      .integer(static_cast<std::uint8_t>(answer.waits ? 1 : 0));
  write_ranks(writer, answer.running);
  writer.integer(static_cast<std::uint8_t>(answer.transfer ? 1 : 0));
  if (answer.transfer) {
    writer.text(answer.transfer->description)
        .integer(answer.transfer->peer)
        .integer(static_cast<std::uint8_t>(answer.transfer->receives ? 1 : 0));
  }
  writer.integer(static_cast<std::uint8_t>(answer.verdict ? 1 : 0));
  if (answer.verdict) write_error(writer, *answer.verdict);
  return std::move(writer).bytes();
}

std::variant<StatusQuestion, Verdict, Proposal> decode_group_message(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "message of a process group");
  const auto type = reader.integer<std::uint8_t>();
  if (type == kQuestion) {
    const auto sequence = reader.integer<std::uint64_t>();
    const StatusQuestion question{.sequence = sequence, .neighbours = reader.integer<std::uint8_t>() != 0};
    reader.expect_end();
    return question;
  }
  if (type != kVerdict && type != kProposal) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading a message of a process group",
                 .cause = "it has an unknown type"}};
  }
  Error error = read_error(reader);
  reader.expect_end();
  if (type == kProposal) return Proposal{.error = std::move(error)};
  return Verdict{.error = std::move(error)};
}

ProposalAnswer decode_proposal_answer(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "answer to a proposal in a process group");
  const bool decided = reader.integer<std::uint8_t>() != 0;
  ProposalAnswer answer{.decided = decided, .error = read_error(reader)};
  reader.expect_end();
  return answer;
}

StatusAnswer decode_status_answer(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "status of a process group");
  StatusAnswer answer{.last_issued = reader.integer<std::uint64_t>(),
                      .fingerprint = reader.integer<std::uint64_t>(),
                      .description = reader.text(),
                      .waits = reader.integer<std::uint8_t>() != 0,
                      .running = read_ranks(reader)};
  if (reader.integer<std::uint8_t>() != 0) {
    answer.transfer = {.description = reader.text(), .peer = reader.integer<int>(), .receives = false};
    answer.transfer->receives = reader.integer<std::uint8_t>() != 0;
  }
  if (reader.integer<std::uint8_t>() != 0) answer.verdict = read_error(reader);
  reader.expect_end();
  return answer;
}

}  // namespace ddp::collectives
