#include "logs/remote_console.hpp"

#include <algorithm>
#include <utility>

namespace ddp::launcher {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{64} << 10U;
using control::kWholeLines;

}  // namespace

RemoteConsole::RemoteConsole(control::Connection& link, int epoch, bool error, std::size_t window_bytes,
                             std::string name, MakeOwn make_own)
    : Console(std::move(name)),
      link_(link),
      epoch_(epoch),
      error_(error),
      window_bytes_(window_bytes),
      make_own_(std::move(make_own)),
      owners_{nullptr} {}

bool RemoteConsole::dropped(std::size_t bytes) {
  if (gone_) abandoned_bytes_ += bytes;
  return gone_;
}

/// A piece at the end of the last batch that is not sent yet. @p mergeable: the last one, if it is @p owner's, too
control::ConsolePiece& RemoteConsole::add(const void* owner, std::size_t bytes, bool mergeable) {
  if (unsent_.empty() || unsent_.back().bytes >= kBatchBytes)
    unsent_.push_back({.output = {.epoch = epoch_, .error = error_}, .bytes = 0});
  Batch& batch = unsent_.back();
  batch.bytes += bytes;
  unsent_bytes_ += bytes;
  std::vector<control::ConsolePiece>& pieces = batch.output.pieces;
  int writer = kWholeLines;
  if (owner != nullptr) {
    const auto [found, added] = writers_.try_emplace(owner, static_cast<int>(owners_.size()));
    if (added) owners_.push_back(owner);
    writer = found->second;
  }
  if (mergeable && !pieces.empty() && pieces.back().writer == writer && pieces.back().prefix.empty())
    return pieces.back();
  return pieces.emplace_back(control::ConsolePiece{.writer = writer});
}

void RemoteConsole::append(const void* owner, std::string_view bytes) {
  if (own_) return own_->append(owner, bytes);
  if (bytes.empty() || dropped(bytes.size())) return;
  control::ConsolePiece& piece = add(owner, bytes.size(), true);
  piece.unprefixed = true;
  piece.text += bytes;
}

void RemoteConsole::append_line(const void* owner, std::string_view prefix, const LinePiece& piece) {
  if (own_) return own_->append_line(owner, prefix, piece);
  const std::size_t bytes = prefix.size() + piece.text.size() + 1;
  if (dropped(bytes)) return;
  if (piece.begins && piece.ends && !piece.overwritten) {
    std::string& lines = add(nullptr, bytes, true).text;
    lines += prefix;
    lines += piece.text;
    lines += '\n';
    return;
  }
  control::ConsolePiece& part = add(owner, bytes, false);
  part.begins = piece.begins;
  part.ends = piece.ends;
  part.overwritten = piece.overwritten;
  part.prefix = prefix;
  part.text = piece.text;
}

void RemoteConsole::flush() {
  if (own_) return own_->flush();
  while (ready()) {
    Batch batch = std::move(unsent_.front());
    unsent_.pop_front();
    unsent_bytes_ -= batch.bytes;
    untaken_bytes_ += batch.bytes;
    link_.send(batch.output);
    untaken_.push_back(std::move(batch));
  }
}

bool RemoteConsole::ready() const {
  if (own_) return own_->ready();
  return !unsent_.empty() && untaken_bytes_ < window_bytes_ && link_.open();
}

std::size_t RemoteConsole::queued() const { return own_ ? own_->queued() : unsent_bytes_ + untaken_bytes_; }

std::optional<int> RemoteConsole::awaited() const { return own_ ? own_->awaited() : std::nullopt; }

void RemoteConsole::taken(std::int64_t messages) {
  for (; messages > 0 && !untaken_.empty(); --messages) {
    taken_bytes_ += untaken_.front().bytes;
    untaken_bytes_ -= untaken_.front().bytes;
    untaken_.pop_front();
  }
}

void RemoteConsole::fall_back() {
  if (own_ || gone_) return;
  own_ = make_own_();
  for (const std::deque<Batch>* batches : {&untaken_, &unsent_}) {
    for (const Batch& batch : *batches) {
      for (const control::ConsolePiece& piece : batch.output.pieces)
        write_piece(*own_, owners_.at(static_cast<std::size_t>(piece.writer)), piece);
    }
  }
  untaken_.clear();
  unsent_.clear();
  untaken_bytes_ = unsent_bytes_ = 0;
}

void RemoteConsole::abandon() {
  if (own_) return own_->abandon();
  abandoned_bytes_ += queued();
  untaken_.clear();
  unsent_.clear();
  untaken_bytes_ = unsent_bytes_ = 0;
  gone_ = true;
}

void RemoteConsole::close() {
  if (own_) return own_->close();
  gone_ = true;
}

std::uint64_t RemoteConsole::taken_bytes() const { return taken_bytes_ + (own_ ? own_->taken_bytes() : 0); }

std::uint64_t RemoteConsole::abandoned_bytes() const { return abandoned_bytes_ + (own_ ? own_->abandoned_bytes() : 0); }

void write_piece(Console& console, const void* owner, const control::ConsolePiece& piece) {
  if (piece.unprefixed) return console.append(owner, piece.text);
  std::string_view text = piece.text;
  if (piece.writer == kWholeLines && text.ends_with('\n')) text.remove_suffix(1);
  console.append_line(owner, piece.prefix,
                      {.text = text, .begins = piece.begins, .ends = piece.ends, .overwritten = piece.overwritten});
}

}  // namespace ddp::launcher
