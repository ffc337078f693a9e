#include "training/shard_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sodium/core.h>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/unique_fd.hpp"

namespace ddp::training {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

constexpr std::size_t kPieceBytes = std::size_t{4} << 20U;  // is hashed and written while it is in the cache

std::string_view bytes_of(const TensorView& tensor) {
  return {static_cast<const char*>(tensor.data()), tensor.size_bytes()};
}

std::vector<ShardEntry> entries_of(std::span<const NamedTensor> tensors) {
  std::vector<ShardEntry> entries;
  for (const NamedTensor& each : tensors) {
    entries.push_back({.name = each.name, .description = each.tensor.description(), .bytes = each.tensor.size_bytes()});
  }
  return entries;
}

/// A file that is read from its start.
class ShardInput {
 public:
  explicit ShardInput(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat facts {};
    if (!fd_ || ::fstat(fd_.get(), &facts) != 0) throw system_error_of(errno);
    bytes_ = static_cast<std::uint64_t>(facts.st_size);
  }
  std::uint64_t bytes() const { return bytes_; }

  /// Fewer than @p size only at the end.
  std::size_t read_some(char* to, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const ssize_t got = ::read(fd_.get(), to + done, size - done);
      if (got == 0) break;
      if (got > 0) {
        done += static_cast<std::size_t>(got);
      } else if (errno != EINTR) {
        throw system_error_of(errno);
      }
    }
    return done;
  }
  void read(char* to, std::size_t size) {
    if (read_some(to, size) != size) throw_damaged(path_, "it ends too early");
  }
  std::string read_text(std::uint64_t size) {
    if (size > bytes_) throw_damaged(path_, fmt::format("it has {} bytes, which is too few", bytes_));
    std::string text(static_cast<std::size_t>(size), '\0');
    read(text.data(), text.size());
    return text;
  }
  ShardIndex read_index() {
    return parse_index(read_text(parse_shard_start(read_text(kShardStartBytes), path_)), path_);
  }

 private:
  Error system_error_of(int number) const {
    return base::system_error(fmt::format("reading '{}'", path_), number, {},
                              number == ENOENT ? ErrorCode::not_found : ErrorCode::system);
  }

  const std::string& path_;
  base::UniqueFd fd_;
  std::uint64_t bytes_ = 0;
};

/// The first entry that differs, as "tensor 3 is 'a' float32[2] in the file, 'b' float32[2] here".
std::string difference(const std::vector<ShardEntry>& file, const std::vector<ShardEntry>& here) {
  const auto [in_file, own] = std::mismatch(file.begin(), file.end(), here.begin(), here.end());
  const auto text = [](const auto& entry, const auto& entries) {
    return entry == entries.end() ? std::string("missing")
                                  : fmt::format("'{:.200}' {:.200}", entry->name, entry->description);
  };
  return fmt::format("tensor {} is {} in the file, {} here", in_file - file.begin(), text(in_file, file),
                     text(own, here));
}

}  // namespace

void check_tensors(std::span<const NamedTensor> tensors) {
  constexpr auto kAttempted = "taking tensors for a checkpoint";
  std::set<std::string_view> names;
  for (const NamedTensor& each : tensors) {
    if (each.tensor.device().type != DeviceType::cpu) {
      base::throw_invalid_argument(kAttempted, fmt::format("'{}' is on a device", each.name), "copy it to the host");
    }
    if (!names.insert(each.name).second) {
      base::throw_invalid_argument(kAttempted, fmt::format("'{}' is there twice", each.name), {});
    }
  }
}

ShardRecord write_shard(const std::string& path, const ShardOrigin& origin, std::span<const NamedTensor> tensors,
                        std::string_view extra) {
  base::NewFile file{path, 0666};
  FileChecksum checksum;
  ShardRecord record;
  const auto write = [&](std::string_view bytes) {
    record.bytes += bytes.size();
    for (; !bytes.empty(); bytes.remove_prefix(std::min(kPieceBytes, bytes.size()))) {
      const std::string_view piece = bytes.substr(0, kPieceBytes);
      checksum.add(piece);
      file.write(piece);
    }
  };
  write(format_index({.origin = origin, .tensors = entries_of(tensors), .extra_bytes = extra.size()}));
  for (const NamedTensor& each : tensors) write(bytes_of(each.tensor));
  write(extra);
  file.commit();
  record.checksum = checksum.digits();
  return record;
}

void check_shard(const std::string& path, const ShardRecord& record, const ShardOrigin& origin,
                 std::span<const NamedTensor> tensors) {
  ShardInput whole{path};
  if (whole.bytes() != record.bytes) {
    throw_damaged(path, fmt::format("it has {} bytes, its checkpoint says {}", whole.bytes(), record.bytes));
  }
  FileChecksum checksum;
  std::string piece(kPieceBytes, '\0');
  while (const std::size_t got = whole.read_some(piece.data(), piece.size())) {
    checksum.add(std::string_view{piece}.substr(0, got));
  }
  if (checksum.digits() != record.checksum) throw_damaged(path, "its checksum is not the one its checkpoint says");

  const ShardIndex index = ShardInput{path}.read_index();
  if (index.origin != origin) {
    throw_damaged(path,
                  fmt::format("it is of step {}, rank {} of {}, save {:.16}; wanted is step {}, rank {} of {}, save {}",
                              index.origin.step, index.origin.rank, index.origin.files, index.origin.id, origin.step,
                              origin.rank, origin.files, origin.id),
                  ErrorCode::mismatch);
  }
  const std::vector<ShardEntry> here = entries_of(tensors);
  if (index.tensors == here) return;
  throw Error{
      {.code = ErrorCode::mismatch,
       .attempted = fmt::format("reading '{}'", path),
       .cause = difference(index.tensors, here),
       .hint = "restore the tensors that were saved, in the same order; is it the checkpoint of another model?"}};
}

std::string read_shard(const std::string& path, std::span<const NamedTensor> tensors) {
  ShardInput input{path};
  const ShardIndex index = input.read_index();
  if (index.tensors != entries_of(tensors)) throw_damaged(path, "it has changed since it was checked");
  for (const NamedTensor& each : tensors) input.read(static_cast<char*>(each.tensor.data()), each.tensor.size_bytes());
  return input.read_text(index.extra_bytes);
}

void throw_damaged(const std::string& path, std::string cause, ErrorCode code) {
  throw Error{{.code = code,
               .attempted = fmt::format("reading '{}'", path),
               .cause = std::move(cause),
               .hint = fmt::format("remove '{}' to continue from the previous checkpoint",
                                   std::filesystem::path(path).parent_path().string())}};
}

void throw_other_version(const std::string& path, std::int64_t found, std::int64_t known) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("reading '{}'", path),
               .cause = fmt::format("it has version {} of the format, this libddp reads {}", found, known),
               .hint = "restore it with the libddp that saved it"}};
}

namespace {

constexpr std::size_t kChecksumBytes = FileChecksum::kDigits / 2;

}  // namespace

FileChecksum::FileChecksum() {
  if (::sodium_init() < 0) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "computing a checksum",
                 .cause = "libsodium cannot be initialised",
                 .native = "sodium_init -1",
                 .hint = "it needs random numbers from the kernel: getrandom(2) or /dev/urandom"}};
  }
  ::crypto_generichash_init(&state_, nullptr, 0, kChecksumBytes);
}

FileChecksum& FileChecksum::add(std::string_view bytes) {
  ::crypto_generichash_update(&state_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return *this;
}

std::string FileChecksum::digits() {
  std::array<unsigned char, kChecksumBytes> value{};
  ::crypto_generichash_final(&state_, value.data(), value.size());
  return fmt::format("{:02x}", fmt::join(value, ""));
}

// The start of a shard's file, written and parsed.

namespace {

constexpr std::string_view kShardMagic = "DDPSHARD";
constexpr std::uint32_t kShardVersion = 1;
static_assert(kShardMagic.size() + sizeof(kShardVersion) + sizeof(std::uint32_t) == kShardStartBytes);

std::span<const std::byte> as_bytes_of(std::string_view text) {
  return std::as_bytes(std::span{text.data(), text.size()});
}

}  // namespace

std::string format_index(const ShardIndex& index) {
  base::ByteWriter body;
  body.text(index.origin.id).integer(index.origin.step).integer(index.origin.rank).integer(index.origin.files);
  body.integer(static_cast<std::uint64_t>(index.tensors.size()));
  for (const ShardEntry& tensor : index.tensors) body.text(tensor.name).text(tensor.description).integer(tensor.bytes);
  body.integer(index.extra_bytes);
  base::ByteWriter all;
  all.raw(as_bytes_of(kShardMagic)).integer(kShardVersion);
  all.integer(static_cast<std::uint32_t>(body.bytes().size())).raw(body.bytes());
  return base::to_text(all.bytes());
}

std::uint32_t parse_shard_start(std::string_view start, const std::string& path) {
  if (start.size() != kShardStartBytes || !start.starts_with(kShardMagic)) {
    throw_damaged(path, "it is not a file of a checkpoint of libddp");
  }
  base::ByteReader reader(as_bytes_of(start.substr(kShardMagic.size())), "start of a checkpoint's file");
  if (const auto version = reader.integer<std::uint32_t>(); version != kShardVersion) {
    throw_other_version(path, version, kShardVersion);
  }
  return reader.integer<std::uint32_t>();
}

ShardIndex parse_index(std::string_view bytes, const std::string& path) {
  ShardIndex index;
  try {
    base::ByteReader reader(as_bytes_of(bytes), "index of a checkpoint's file");
    index.origin.id = reader.text();
    index.origin.step = reader.integer<std::int64_t>();
    index.origin.rank = reader.integer<std::uint32_t>();
    index.origin.files = reader.integer<std::uint32_t>();
    const auto count = reader.integer<std::uint64_t>();
    for (std::uint64_t i = 0; i < count; ++i) {  // each takes bytes of those that are there
      ShardEntry& tensor = index.tensors.emplace_back();
      tensor.name = reader.text();
      tensor.description = reader.text();
      tensor.bytes = reader.integer<std::uint64_t>();
    }
    index.extra_bytes = reader.integer<std::uint64_t>();
    reader.expect_end();
  } catch (const Error& error) {
    throw_damaged(path, fmt::format("its index is damaged: {}", error.cause()));
  }
  return index;
}

}  // namespace ddp::training
