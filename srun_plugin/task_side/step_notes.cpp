#include "task_side/step_notes.hpp"

#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr std::uint8_t kNotesVersion = 1;

void check_notes_version(base::ByteReader& reader) {
  const auto version = reader.integer<std::uint8_t>();
  if (version == kNotesVersion) return;
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading what a node says of the step",
               .cause = fmt::format("its version is {}, this one's {}", version, kNotesVersion),
               .hint = "install one version of the plugin on all nodes"}};
}

}  // namespace

std::string presence_key(const std::string& node) { return fmt::format("ddp-step/node/{}", node); }

std::string end_key(std::uint32_t rank) { return fmt::format("ddp-step/end/{}", rank); }

Bytes encode(const StepNote& note) {
  return std::move(base::ByteWriter{}.integer(kNotesVersion).text(note.node_list).integer(note.world_size)).bytes();
}

StepNote decode_step_note(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "nodes of a step");
  check_notes_version(reader);
  StepNote note;
  note.node_list = reader.text();
  note.world_size = reader.integer<std::uint32_t>();
  reader.expect_end();
  return note;
}

Bytes encode(const RankEnd& end) {
  return std::move(base::ByteWriter{}
                       .integer(kNotesVersion)
                       .integer(end.rank)
                       .integer(end.status)
                       .integer(end.when_ms)
                       .text(end.node))
      .bytes();
}

RankEnd decode_rank_end(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "end of a rank");
  check_notes_version(reader);
  RankEnd end;
  end.rank = reader.integer<std::uint32_t>();
  end.status = reader.integer<std::int32_t>();
  end.when_ms = reader.integer<std::int64_t>();
  end.node = reader.text();
  reader.expect_end();
  return end;
}

}  // namespace ddp::srun_plugin
