// What a group does for named operations that all ranks have decided to run together: packs small ones, exchanges sizes
// before what has rows, and unpacks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ddp/named_operations.hpp>
#include <ddp/process_group.hpp>
#include <ddp/work.hpp>

#include "named/messages.hpp"

namespace ddp::named {

/// An operation of this rank on its way. For a joined rank: one that it has not submitted, with memory of its own.
struct Subject {
  Request request{};
  std::vector<TensorView> tensors{};
  std::vector<std::int64_t> splits{};
  std::shared_ptr<const void> keep_alive{};
  std::vector<NamedResult> results{};
};

/// What a rank gives to an all_gather of one small tensor together with its Token.
struct EagerRows {
  static constexpr std::int64_t kTooMany = -1;
  std::int64_t rows = kTooMany;
  std::array<std::byte, 504> values{};
};
EagerRows eager_rows(const TensorView& tensor);
/// The result of all ranks' rows, none of which are too many.
NamedResult gathered(const TensorView& tensor, std::span<const EagerRows> ranks);

/// What a joined rank gives to an operation of others: zeros, or no rows.
std::shared_ptr<Subject> stand_in(const Request& request);

/// One exchange at a time: next() until it gives nothing; each Work has ended before the next call.
class Execution {
 public:
  /// @param subjects of one kind; several, or one.
  Execution(ProcessGroup group, std::vector<std::shared_ptr<Subject>> subjects);
  Execution& operator=(Execution&&) = delete;
  ~Execution();

  /// Starts the next exchange. Nothing: all is done. Throws Error.
  std::optional<Work> next();
  /// How many go in one exchange with others.
  std::size_t packed() const noexcept { return packed_count_; }

 private:
  struct Packed;

  std::optional<Work> all_reduce();
  std::optional<Work> broadcast();
  std::optional<Work> exchange_rows();
  std::optional<Work> all_gather();
  std::optional<Work> all_to_all();
  std::optional<Work> reduce_scatter();
  void unpack();
  Subject& only() const { return *subjects_.front(); }

  ProcessGroup group_;
  const std::vector<std::shared_ptr<Subject>> subjects_;
  const std::shared_ptr<const void> owner_;
  int stage_ = 0;
  std::size_t packed_count_ = 0;
  std::vector<Packed> packed_;
  std::vector<std::int64_t> own_rows_;
  std::vector<std::int64_t> all_rows_;
};

}  // namespace ddp::named
