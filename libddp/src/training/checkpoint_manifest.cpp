#include "training/checkpoint_manifest.hpp"

#include <algorithm>
#include <charconv>
#include <concepts>

#include <fmt/format.h>

#include "training/shard_file.hpp"

namespace ddp::training {
namespace {

constexpr std::string_view kManifestStart = "ddp-checkpoint ";
constexpr int kManifestVersion = 1;
constexpr std::string_view kManifestEnd = "checksum ";

std::string end_of(std::string_view lines) {
  return fmt::format("{}{}\n", kManifestEnd, FileChecksum().add(lines).digits());
}

/// Takes a manifest's words off its text, each with what comes before and behind it.
class ManifestReader {
 public:
  ManifestReader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  void expect(std::string_view literal) {
    if (!text_.starts_with(literal)) fail(fmt::format("'{}' is missing", literal.substr(0, literal.find('\n'))));
    text_.remove_prefix(literal.size());
  }
  bool take(std::string_view literal) {
    if (!text_.starts_with(literal)) return false;
    text_.remove_prefix(literal.size());
    return true;
  }
  /// In the one form in which it is written.
  template <std::integral Int>
  Int number(Int least) {
    Int value{};
    const auto [end, failure] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    const std::string_view digits = text_.substr(0, static_cast<std::size_t>(end - text_.data()));
    if (failure != std::errc{} || value < least || digits != fmt::to_string(value)) fail("a number is wrong");
    text_.remove_prefix(digits.size());
    return value;
  }
  std::string hexadecimal(std::size_t digits) {
    const std::string_view word = text_.substr(0, digits);
    const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (word.size() != digits || !std::all_of(word.begin(), word.end(), is_digit)) fail("an identifier is wrong");
    text_.remove_prefix(digits);
    return std::string{word};
  }
  void expect_end() const {
    if (!text_.empty()) fail("it has too many lines");
  }
  [[noreturn]] void fail(const std::string& cause) const { throw_damaged(path_, cause); }

 private:
  std::string_view text_;
  const std::string& path_;
};

}  // namespace

std::string format_manifest(const CheckpointManifest& manifest) {
  std::string text = fmt::format("{}{}\nid {}\nstep {}\nkind {}\nranks {}\n", kManifestStart, kManifestVersion,
                                 manifest.id, manifest.step, manifest.sharded ? "sharded" : "rank-0", manifest.ranks);
  for (const ShardRecord& shard : manifest.shards) text += fmt::format("file {} {}\n", shard.bytes, shard.checksum);
  return text + end_of(text);
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& path) {
  ManifestReader reader(text, path);
  reader.expect(kManifestStart);
  if (const int version = reader.number<int>(0); version != kManifestVersion) {
    throw_other_version(path, version, kManifestVersion);
  }
  const std::size_t end_bytes = kManifestEnd.size() + FileChecksum::kDigits + 1;
  const std::size_t lines_bytes = text.size() - std::min(text.size(), end_bytes);
  const std::string end = end_of(text.substr(0, lines_bytes));
  if (text.substr(lines_bytes) != end) reader.fail("its checksum is not that of its lines");
  CheckpointManifest manifest;
  reader.expect("\nid ");
  manifest.id = reader.hexadecimal(kIdDigits);
  reader.expect("\nstep ");
  manifest.step = reader.number<std::int64_t>(0);
  manifest.sharded = reader.take("\nkind sharded");
  if (!manifest.sharded) reader.expect("\nkind rank-0");
  reader.expect("\nranks ");
  manifest.ranks = reader.number<int>(1);
  while (reader.take("\nfile ")) {
    ShardRecord& shard = manifest.shards.emplace_back();
    shard.bytes = reader.number<std::uint64_t>(0);
    reader.expect(" ");
    shard.checksum = reader.hexadecimal(FileChecksum::kDigits);
  }
  const std::size_t wanted = manifest.sharded ? static_cast<std::size_t>(manifest.ranks) : 1;
  if (manifest.shards.size() != wanted) {
    reader.fail(fmt::format("it names {} files instead of {}", manifest.shards.size(), wanted));
  }
  reader.expect("\n");
  reader.expect(end);
  reader.expect_end();
  return manifest;
}

}  // namespace ddp::training
