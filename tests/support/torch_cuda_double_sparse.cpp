// Sparse tensors on the double of CUDA (torch_cuda_double.cpp): what is computed with them waits for the device, as
// much of it does in CUDA, too, since the number of their elements is the host's to know.
#include <optional>

#include <ATen/ATen.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

namespace {

/// A sparse tensor's copy, or a dense one's same memory, for work on processors.
at::Tensor host_version(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  if (tensor.layout() == at::kStrided) {
    return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
  }
  return at::_sparse_coo_tensor_unsafe(host_version(tensor._indices()).clone(), host_version(tensor._values()).clone(),
                                       tensor.sizes(), at::TensorOptions(tensor.scalar_type()).layout(at::kSparse),
                                       tensor.is_coalesced());
}

at::Tensor device_version(const at::Tensor& tensor, at::Device device) {
  if (tensor.layout() == at::kStrided) return tensor.to(device);
  return at::_sparse_coo_tensor_unsafe(tensor._indices().to(device), tensor._values().to(device), tensor.sizes(),
                                       tensor.options().device(device), tensor.is_coalesced());
}

at::Tensor clone(const at::Tensor& tensor, std::optional<at::MemoryFormat> /*format*/) {
  return at::_sparse_coo_tensor_unsafe(tensor._indices().clone(), tensor._values().clone(), tensor.sizes(),
                                       tensor.options(), tensor.is_coalesced());
}

void compute_on_host(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  const torch::jit::Stack given = torch::jit::pop(*stack, schema.arguments().size());
  torch::jit::Stack values = given;
  std::optional<at::Device> device;
  for (c10::IValue& each : values) {
    if (!each.isTensor() || !each.toTensor().defined()) continue;
    if (each.toTensor().is_cuda()) device = each.toTensor().device();
  }
  TORCH_CHECK(device, schema, " has no sparse tensor on the double of CUDA");
  const c10::impl::VirtualGuardImpl guard(device->type());
  guard.synchronizeStream(guard.getStream(*device));
  for (c10::IValue& each : values) {
    if (each.isTensor() && each.toTensor().defined()) each = host_version(each.toTensor());
  }
  operation.callBoxed(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto* const alias = schema.returns()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      const at::Tensor& written = given[0].toTensor();
      if (written.layout() == at::kSparse) {
        const at::Tensor made = device_version(values[i].toTensor(), *device);
        auto* const to = static_cast<at::SparseTensorImpl*>(written.unsafeGetTensorImpl());
        to->set_indices_and_values_unsafe(made._indices(), made._values());
        to->set_coalesced(made.is_coalesced());
      }
      stack->emplace_back(written);
    } else {
      stack->emplace_back(values[i].isTensor() ? c10::IValue(device_version(values[i].toTensor(), *device))
                                               : values[i]);
    }
  }
}

TORCH_LIBRARY_IMPL(aten, SparseCUDA, library) {
  library.impl("clone", &clone);
  library.impl("_indices", &at::native::_indices_sparse);
  library.impl("_values", &at::native::_values_sparse);
  library.impl("_nnz", &at::native::_nnz_sparse);
  library.impl("sparse_dim", &at::native::sparse_dim_sparse);
  library.impl("dense_dim", &at::native::dense_dim_sparse);
  library.impl("is_coalesced", &at::native::is_coalesced_sparse);
  library.impl("_coalesced_", &at::native::_coalesced_sparse_);
  library.impl("_sparse_coo_tensor_with_dims_and_tensors", &at::native::new_with_dims_and_tensor_sparse_symint);
}
TORCH_LIBRARY_IMPL(_, SparseCUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

}  // namespace
