#include "reducer/sparse_gradients.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/invalid_argument.hpp"
#include "collectives/reduce_kernels.hpp"

namespace ddp::reducer {

struct SparseGradients::Exchange {
  std::vector<std::int64_t> own_rows;
  Bytes own_values;
  std::vector<std::int64_t> rows;  ///< of all ranks
  Bytes values;
  std::vector<Work> works;
};

SparseGradients::SparseGradients(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& owners)
    : parameters_(parameters) {
  for (const std::size_t owner : owners) {
    if (!parameters[owner].sparse_gradient) continue;
    const TensorView& value = parameters[owner].value;
    const auto rows = static_cast<std::size_t>(value.shape().front());
    entries_[owner].row_elements = rows > 0 ? value.numel() / rows : 0;
  }
}

void SparseGradients::check(std::size_t owner, const SparseGradient& gradient, const char* attempted) const {
  const Parameter& parameter = parameters_[owner];
  const auto refuse = [&](std::string cause) {
    base::throw_invalid_argument(
        fmt::format("{} the sparse gradient of '{}'", attempted, parameter.name), std::move(cause),
        fmt::format("rows are int64 positions, values their rows of {}", parameter.value.description()));
  };
  const std::size_t count = gradient.rows.numel();
  if (count > 0 && gradient.rows.dtype() != DType::int64) refuse("its rows are " + gradient.rows.description());
  if (gradient.values.numel() != count * entries_.at(owner).row_elements ||
      (count > 0 && gradient.values.dtype() != parameter.value.dtype())) {
    refuse(fmt::format("its values are {} of {} rows", gradient.values.description(), count));
  }
  if (gradient.rows.device().type != DeviceType::cpu || gradient.values.device().type != DeviceType::cpu) {
    refuse("it is on a CUDA device");
  }
  const auto* const rows = static_cast<const std::int64_t*>(gradient.rows.data());
  for (std::size_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= parameter.value.shape().front()) refuse(fmt::format("there is no row {}", rows[i]));
  }
}

void SparseGradients::place(std::size_t owner, const SparseGradient& gradient) {
  const std::lock_guard lock(mutex_);
  entries_.at(owner).own = gradient;
}

void SparseGradients::forget() {
  for (auto& [owner, entry] : entries_) entry.own.reset();
}

void SparseGradients::average(ProcessGroup& group, int divisor) {
  if (entries_.empty()) return;
  const auto ranks = static_cast<std::size_t>(group.size());
  struct Counts {
    std::vector<std::int64_t> own;
    std::vector<std::int64_t> all;  ///< by rank, then by parameter
  };
  const auto exchanged = std::make_shared<Counts>();
  auto& [own_counts, counts] = *exchanged;
  for (const auto& [owner, entry] : entries_) {
    own_counts.push_back(entry.own ? static_cast<std::int64_t>(entry.own->rows.numel()) : 0);
  }
  counts.resize(own_counts.size() * ranks);
  group.all_gather(own_counts, counts, {{}, exchanged}).wait_watched();

  std::vector<std::shared_ptr<Exchange>> exchanges;  // operations keep their memory, whatever fails
  std::size_t position = 0;
  for (const auto& [owner, entry] : entries_) {
    const DType dtype = parameters_[owner].value.dtype();
    const std::size_t row_bytes = entry.row_elements * size_of(dtype);
    std::vector<std::size_t> rows_of_rank;
    std::vector<std::size_t> bytes_of_rank;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rows_of_rank.push_back(static_cast<std::size_t>(counts[rank * own_counts.size() + position]));
      bytes_of_rank.push_back(rows_of_rank.back() * row_bytes);
    }
    ++position;
    const auto exchange = std::make_shared<Exchange>();
    exchanges.push_back(exchange);
    const std::size_t total = std::reduce(rows_of_rank.begin(), rows_of_rank.end());
    if (total == 0 || row_bytes == 0) continue;
    exchange->rows.resize(total);
    exchange->values.resize(total * row_bytes);
    if (entry.own && entry.own->rows.numel() > 0) {
      const auto* const rows = static_cast<const std::int64_t*>(entry.own->rows.data());
      exchange->own_rows.assign(rows, rows + entry.own->rows.numel());
      exchange->own_values.resize(exchange->own_rows.size() * row_bytes);
      collectives::divide_into(exchange->own_values.data(), entry.own->values.data(), dtype, entry.own->values.numel(),
                               divisor);
    }
    const auto bytes_view = [](Bytes& bytes) {
      return TensorView{bytes.data(), DType::uint8, {static_cast<std::int64_t>(bytes.size())}};
    };
    exchange->works.push_back(group.all_gather_v(exchange->own_rows, exchange->rows, rows_of_rank, {{}, exchange}));
    exchange->works.push_back(group.all_gather_v(bytes_view(exchange->own_values), bytes_view(exchange->values),
                                                 bytes_of_rank, {{}, exchange}));
  }

  auto exchange = exchanges.begin();
  for (auto& [owner, entry] : entries_) {
    Exchange& all = **exchange++;
    for (const Work& work : all.works) work.wait_watched();
    all.works.clear();
    const DType dtype = parameters_[owner].value.dtype();
    const std::size_t row_bytes = entry.row_elements * size_of(dtype);
    std::vector<std::size_t> order(all.rows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return all.rows[i]; });
    entry.rows.clear();
    for (const std::size_t i : order) {
      if (entry.rows.empty() || entry.rows.back() != all.rows[i]) entry.rows.push_back(all.rows[i]);
    }
    entry.values.assign(entry.rows.size() * row_bytes, std::byte{});
    const collectives::Reduction sum(dtype, ReduceOp::sum, 1);
    std::vector<const void*> same_row;
    std::size_t next = 0;
    for (std::size_t row = 0; row < entry.rows.size(); ++row) {
      same_row.clear();
      for (; next < order.size() && all.rows[order[next]] == entry.rows[row]; ++next) {
        same_row.push_back(all.values.data() + order[next] * row_bytes);
      }
      sum.combine(entry.values.data() + row * row_bytes, same_row, entry.row_elements);
    }
  }
}

SparseGradient SparseGradients::result(std::size_t owner) const {
  const Entry& entry = entries_.at(owner);
  const TensorView& value = parameters_[owner].value;
  std::vector<std::int64_t> shape(value.shape().begin(), value.shape().end());
  shape.front() = static_cast<std::int64_t>(entry.rows.size());
  return {.rows = std::span{entry.rows}, .values = {const_cast<std::byte*>(entry.values.data()), value.dtype(), shape}};
}

}  // namespace ddp::reducer
