#include "reducer/sparse_gradients.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/errors.hpp"
#include "collectives/reduce_kernels.hpp"
#include "reducer/bucket.hpp"
#include "reducer/step_report.hpp"

namespace ddp::reducer {
namespace {

const std::int64_t* stray_row(std::span<const std::int64_t> rows, const TensorView& parameter) {
  const auto found =
      std::ranges::find_if(rows, [&](std::int64_t row) { return row < 0 || row >= parameter.shape().front(); });
  return found == rows.end() ? nullptr : &*found;
}

std::span<const std::int64_t> rows_in(const void* memory, std::size_t count) {
  return {static_cast<const std::int64_t*>(memory), count};
}

}  // namespace

struct SparseGradients::Exchange {
  std::size_t owner = 0;
  std::vector<std::int64_t> own_rows;
  Bytes own_values;
  std::vector<std::int64_t> rows;  ///< of all ranks
  Bytes values;
  std::vector<Work> works;
};

SparseGradients::SparseGradients(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& owners,
                                 const ReducerOptions& options)
    : parameters_(parameters), options_(options) {
  for (const std::size_t owner : owners) {
    if (!parameters[owner].sparse_gradient) continue;
    const TensorView& value = parameters[owner].value;
    const auto rows = static_cast<std::size_t>(value.shape().front());
    entries_[owner].row_elements = rows > 0 ? value.numel() / rows : 0;
  }
}

std::size_t SparseGradients::row_bytes(std::size_t owner) const {
  return entries_.at(owner).row_elements * size_of(parameters_[owner].value.dtype());
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
  if (count == 0) return;
  if (gradient.rows.device() != parameter.value.device() || gradient.values.device() != parameter.value.device()) {
    refuse("it is on another device than its parameter");
  }
  if (on_device(owner)) return;
  if (const auto* const row = stray_row(rows_in(gradient.rows.data(), count), parameter.value)) {
    refuse(fmt::format("there is no row {}", *row));
  }
}

void SparseGradients::place(std::size_t owner, const SparseGradient& gradient, const Stream* producer,
                            TensorExecutor* device) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_.at(owner);
  entry.own = gradient;
  entry.producer.reset();
  entry.computed = nullptr;
  if (producer == nullptr) return;
  entry.producer = *producer;
  entry.computed = device->now_in(*producer);
}

void SparseGradients::forget() {
  for (auto& [owner, entry] : entries_) {
    entry.own.reset();
    entry.producer.reset();
    entry.computed = nullptr;
  }
}

std::string SparseGradients::take_own(std::vector<std::shared_ptr<Exchange>>& exchanges, int divisor,
                                      TensorExecutor* device, Deadline deadline) const {
  std::string fault;
  for (const auto& exchange : exchanges) {
    const Entry& entry = entries_.at(exchange->owner);
    const Parameter& parameter = parameters_[exchange->owner];
    if (!entry.own || entry.own->rows.numel() == 0) continue;
    const std::size_t count = entry.own->rows.numel();
    const void* rows = entry.own->rows.data();
    const void* values = entry.own->values.data();
    Bytes own_rows;
    Bytes own_values;
    if (on_device(exchange->owner)) {
      if (entry.computed) device->wait_for(entry.computed);
      own_rows = device->read(rows, entry.own->rows.size_bytes(), deadline);
      own_values = device->read(values, entry.own->values.size_bytes(), deadline);
      rows = own_rows.data();
      values = own_values.data();
      if (const auto* const row = stray_row(rows_in(rows, count), parameter.value); row != nullptr) {
        fault = fmt::format("there is no row {} of '{}'", *row, parameter.name);
      }
    }
    const auto all_rows = rows_in(rows, count);
    exchange->own_rows.assign(all_rows.begin(), all_rows.end());
    exchange->own_values.resize(count * row_bytes(exchange->owner));
    collectives::divide_into(exchange->own_values.data(), values, parameter.value.dtype(), entry.own->values.numel(),
                             divisor);
  }
  return fault;
}

void SparseGradients::gather(std::vector<std::shared_ptr<Exchange>>& exchanges, ProcessGroup& group,
                             const std::string& fault) const {
  constexpr std::int64_t kFault = -1;  // in the place of a count
  const auto ranks = static_cast<std::size_t>(group.size());
  struct Counts {
    std::vector<std::int64_t> own;
    std::vector<std::int64_t> all;  ///< by rank, then by parameter
  };
  const auto counts = std::make_shared<Counts>();
  for (const auto& exchange : exchanges) {
    counts->own.push_back(fault.empty() ? static_cast<std::int64_t>(exchange->own_rows.size()) : kFault);
  }
  counts->all.resize(counts->own.size() * ranks);
  group.all_gather(counts->own, counts->all, {{}, counts}).wait_watched();

  std::vector<int> faulty;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (counts->all[rank * exchanges.size()] == kFault) faulty.push_back(group.global_ranks()[rank]);
  }
  if (!faulty.empty()) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "averaging sparse gradients",
                 .cause = fault.empty() ? "other ranks have rows that their parameters do not have" : fault,
                 .ranks = std::move(faulty),
                 .hint = "look at the indices of the batch on these ranks"}};
  }
  for (std::size_t position = 0; position < exchanges.size(); ++position) {
    const auto& exchange = exchanges[position];
    const std::size_t bytes_of_row = row_bytes(exchange->owner);
    std::vector<std::size_t> rows_of_rank;
    std::vector<std::size_t> bytes_of_rank;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rows_of_rank.push_back(static_cast<std::size_t>(counts->all[rank * exchanges.size() + position]));
      bytes_of_rank.push_back(rows_of_rank.back() * bytes_of_row);
    }
    const std::size_t total = std::reduce(rows_of_rank.begin(), rows_of_rank.end());
    if (total == 0 || bytes_of_row == 0) continue;
    exchange->rows.resize(total);
    exchange->values.resize(total * bytes_of_row);
    const auto bytes_view = [](Bytes& bytes) {
      return TensorView{bytes.data(), DType::uint8, {static_cast<std::int64_t>(bytes.size())}};
    };
    exchange->works.push_back(group.all_gather_v(exchange->own_rows, exchange->rows, rows_of_rank, {{}, exchange}));
    exchange->works.push_back(group.all_gather_v(bytes_view(exchange->own_values), bytes_view(exchange->values),
                                                 bytes_of_rank, {{}, exchange}));
  }
}

void SparseGradients::add_up(Exchange& all, DType dtype, Entry& entry) {
  const std::size_t bytes_of_row = entry.row_elements * size_of(dtype);
  std::vector<std::size_t> order(all.rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return all.rows[i]; });
  entry.rows.clear();
  for (const std::size_t i : order) {
    if (entry.rows.empty() || entry.rows.back() != all.rows[i]) entry.rows.push_back(all.rows[i]);
  }
  entry.values.assign(entry.rows.size() * bytes_of_row, std::byte{});
  const collectives::Reduction sum(dtype, ReduceOp::sum, 1);
  std::vector<const void*> same_row;
  std::size_t next = 0;
  for (std::size_t row = 0; row < entry.rows.size(); ++row) {
    same_row.clear();
    for (; next < order.size() && all.rows[order[next]] == entry.rows[row]; ++next) {
      same_row.push_back(all.values.data() + order[next] * bytes_of_row);
    }
    sum.combine(entry.values.data() + row * bytes_of_row, same_row, entry.row_elements);
  }
}

void SparseGradients::bring_to(ProcessGroup& group, const std::shared_ptr<TensorExecutor>& device, Deadline deadline) {
  const Device where = device->stream()->device;
  for (auto& [owner, entry] : entries_) {
    if (!on_device(owner) || entry.rows.empty()) continue;
    const auto result = std::make_shared<Bytes>(entry.values_place() + entry.values.size());
    // on all ranks, since all have the same result, and the same groups
    if (result->size() > entry.capacity || entry.writer != device) {
      if (entry.writer && entry.writer != device) device->hold_back(*entry.writer->stream());  // until it may be freed
      entry.memory = nullptr;
      entry.writer = device;
      entry.capacity = result->size() + result->size() / 2;
      entry.memory = bucket_memory(entry.capacity, where, options_, group, device);
      device->wait_for(device->now_in(home_stream(where, options_)));  // it is zeroed there
    }
    std::ranges::copy(std::as_bytes(std::span{entry.rows}), result->begin());
    std::ranges::copy(entry.values, result->begin() + static_cast<std::ptrdiff_t>(entry.values_place()));
    device->write(result, entry.memory.get(), deadline);
  }
  device->hold_back(home_stream(where, options_));
  for (const auto& [owner, entry] : entries_) {
    if (entry.producer) device->hold_back(*entry.producer);
  }
}

void SparseGradients::average(ProcessGroup& group, int divisor, const std::shared_ptr<TensorExecutor>& device) {
  if (entries_.empty()) return;
  const bool moves = std::ranges::any_of(entries_, [this](const auto& each) { return on_device(each.first); });
  const Deadline deadline = Deadline::after(group.timeout());
  std::vector<std::shared_ptr<Exchange>> exchanges;  // operations keep their memory, whatever fails
  for (const auto& [owner, entry] : entries_) {
    exchanges.push_back(std::make_shared<Exchange>());
    exchanges.back()->owner = owner;
  }
  const std::string fault = guarded(group, nullptr, [&] {
    // the program has computed gradients there, and read the last result
    if (moves) device->wait_for(device->now_in(home_stream(device->stream()->device, options_)));
    return take_own(exchanges, divisor, device.get(), deadline);
  });
  gather(exchanges, group, fault);
  for (const auto& exchange : exchanges) {
    for (const Work& work : exchange->works) work.wait_watched();
    exchange->works.clear();
    add_up(*exchange, parameters_[exchange->owner].value.dtype(), entries_.at(exchange->owner));
  }
  if (moves) guarded(group, nullptr, [&] { bring_to(group, device, deadline); });
}

SparseGradient SparseGradients::result(std::size_t owner) const {
  const Entry& entry = entries_.at(owner);
  const TensorView& value = parameters_[owner].value;
  std::vector<std::int64_t> shape(value.shape().begin(), value.shape().end());
  shape.front() = static_cast<std::int64_t>(entry.rows.size());
  if (on_device(owner)) {
    auto* const rows = static_cast<std::byte*>(entry.memory.get());
    return {.rows = {rows, DType::int64, {shape.front()}, value.device()},
            .values = {rows + entry.values_place(), value.dtype(), shape, value.device()}};
  }
  return {.rows = std::span{entry.rows}, .values = {const_cast<std::byte*>(entry.values.data()), value.dtype(), shape}};
}

}  // namespace ddp::reducer
