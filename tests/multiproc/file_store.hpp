// A key-value store in a folder, for ranks that are left of a job and make a group of their own.
#pragma once

#include <ddp/error.hpp>
#include <ddp/key_value_store.hpp>

namespace ddp::test {

/// @p folder: empty at first.
class FileStore final : public KeyValueStore {
 public:
  FileStore(std::filesystem::path folder, int rank, int size) : folder_(std::move(folder)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return size_; }
  std::string_view transport() const override { return "folder"; }
  void put(std::string_view key, std::span<const std::byte> value) override {
    const auto file = path(key, rank_);
    std::ofstream(file).write(reinterpret_cast<const char*>(value.data()), static_cast<std::streamsize>(value.size()));
  }
  void fence(Deadline deadline) override {
    const std::string name = "fence " + std::to_string(++fences_);
    put(name, {});
    for (int other = 0; other < size_; ++other) {
      while (!std::filesystem::exists(path(name, other))) {
        if (deadline.expired()) throw missing(ErrorCode::timeout, other);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
  }
  Bytes get(int rank, std::string_view key, Deadline /*it is there*/) override {
    std::ifstream file(path(key, rank));
    if (!file) throw missing(ErrorCode::not_found, rank);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
    return {bytes, bytes + text.size()};
  }
  void close() noexcept override {}

 private:
  std::filesystem::path path(std::string_view key, int rank) const {
    return folder_ / (std::string(key) + "." + std::to_string(rank));
  }
  static Error missing(ErrorCode code, int rank) {
    return Error{
        {.code = code, .attempted = "meeting in a folder", .cause = "a rank's file is missing", .ranks = {rank}}};
  }

  const std::filesystem::path folder_;
  const int rank_;
  const int size_;
  int fences_ = 0;
};

}  // namespace ddp::test
