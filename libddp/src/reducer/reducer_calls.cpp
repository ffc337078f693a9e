// What programs call of a Reducer; its log gets the errors.
#include <utility>

#include <ddp/reducer.hpp>

#include "reducer/reducer_impl.hpp"

namespace ddp {

Reducer::Reducer(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(group), std::move(options))) {}
Reducer::Reducer(Reducer&&) noexcept = default;
Reducer& Reducer::operator=(Reducer&&) noexcept = default;
Reducer::~Reducer() = default;

void Reducer::prepare_for_backward(std::span<const std::size_t> unused) {
  impl_->note_error([&] { impl_->prepare_for_backward(unused); });
}
void Reducer::mark_ready(std::size_t index) {
  impl_->note_error([&] { impl_->mark_ready(index, nullptr, nullptr); });
}
void Reducer::mark_ready(std::size_t index, const Stream& producer) {
  impl_->note_error([&] { impl_->mark_ready(index, nullptr, &producer); });
}
void Reducer::mark_ready(std::size_t index, const TensorView& gradient) {
  impl_->note_error([&] { impl_->mark_ready(index, &gradient, nullptr); });
}
void Reducer::mark_ready(std::size_t index, const TensorView& gradient, const Stream& producer) {
  impl_->note_error([&] { impl_->mark_ready(index, &gradient, &producer); });
}
void Reducer::mark_ready(std::size_t index, const SparseGradient& gradient) {
  impl_->note_error([&] { impl_->mark_ready(index, gradient, nullptr); });
}
void Reducer::mark_ready(std::size_t index, const SparseGradient& gradient, const Stream& producer) {
  impl_->note_error([&] { impl_->mark_ready(index, gradient, &producer); });
}
void Reducer::place_gradient(std::size_t index, const TensorView& gradient) {
  impl_->note_error([&] { impl_->place_gradient(index, gradient); });
}
void Reducer::place_gradient(std::size_t index, const SparseGradient& gradient) {
  impl_->note_error([&] { impl_->place_gradient(index, gradient); });
}
bool Reducer::give_up() {
  bool repeats = false;
  impl_->note_error([&] { repeats = impl_->give_up(); });
  return repeats;
}
SparseGradient Reducer::sparse_average(std::size_t index) const { return impl_->sparse_average(index); }
void Reducer::finalize() {
  impl_->note_error([&] { impl_->finalize(); });
}
Reducer::NoSync Reducer::no_sync() { return impl_->no_sync(); }
TensorView Reducer::bucket_view(std::size_t index) const { return impl_->bucket_view(index); }
bool Reducer::used(std::size_t index) const { return impl_->used(index); }
void Reducer::broadcast_buffers(std::span<const TensorView> buffers, int root) {
  impl_->note_error([&] { impl_->broadcast_buffers(buffers, root); });
}
void Reducer::change_group(ProcessGroup group) {
  impl_->note_error([&] { impl_->change_group(std::move(group)); });
}
const std::vector<std::vector<std::size_t>>& Reducer::buckets() const noexcept { return impl_->plan(); }
const std::vector<std::size_t>& Reducer::ready_order() const noexcept { return impl_->order(); }
RecordedOrder Reducer::recorded_order() const { return impl_->recorded_order(); }
const ReducerStats& Reducer::stats() const noexcept { return impl_->stats(); }
void Reducer::start_forward() { impl_->log().start_forward(); }
DdpLog Reducer::log() const { return impl_->read_log(); }
void Reducer::trace(std::size_t steps) { impl_->trace(steps); }
std::string Reducer::trace_json() const { return impl_->trace_json(); }
Joinable& Reducer::joinable(std::vector<TensorView> buffers) {
  impl_->set_join_buffers(std::move(buffers));
  return *impl_;
}

}  // namespace ddp
