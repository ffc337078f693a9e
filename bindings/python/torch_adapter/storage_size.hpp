// Memory that libddp's operations by name use: PyTorch must not resize it meanwhile, which would free it.
//
// A limit: tensor.numpy() makes memory fixed for good, by the same mark, which does not show who has set it. Where it
// is called during an operation, the memory may be resized after the operation, which frees what the array uses. Memory
// that stayed fixed after each operation would fail programs that resize their tensors between operations, which are
// more.
#pragma once

#include <unordered_map>

#include <torch/csrc/autograd/python_variable.h>

namespace ddp_adapter {

/// Storages that could be resized before, by how many operations use them. With the GIL.
inline std::unordered_map<c10::StorageImpl*, int>& fixed_storages() {
  static auto* const all =
      new std::unordered_map<c10::StorageImpl*, int>;  // operations may end while the process exits
  return *all;
}

/// From now on resize_() is an error of the tensors that share @p tensor's memory, which stays. @return for
/// release_storage(); null for what is no tensor in the CPU's memory. With the GIL.
inline void* fix_storage(PyObject* tensor) noexcept {
  if (!THPVariable_Check(tensor)) return nullptr;
  const at::Tensor& given = THPVariable_Unpack(tensor);
  if (!given.defined() || !given.has_storage() || !given.is_cpu()) return nullptr;
  auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(given.storage().unsafeGetStorageImpl());
  auto& all = fixed_storages();
  if (const auto found = all.find(storage.get()); found != all.end()) {
    ++found->second;
  } else if (storage->resizable()) {
    all.emplace(storage.get(), 1);
    storage->set_resizable(false);
  }
  return storage.release();
}

/// Once for each fix_storage(): after the last one the memory may be resized as before. With the GIL.
inline void release_storage(void* kept) noexcept {
  const auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(kept));
  auto& all = fixed_storages();
  const auto found = all.find(storage.get());
  if (found == all.end() || --found->second > 0) return;
  all.erase(found);
  if (storage->allocator() != nullptr) storage->set_resizable(true);  // else it has been moved to shared memory
}

/// As StorageFunctions of libddp._core's tensor_argument.hpp.
struct StorageFunctions {
  void* (*fix)(PyObject*);
  void (*release)(void*);
};
inline constexpr StorageFunctions kStorageFunctions{.fix = &fix_storage, .release = &release_storage};

}  // namespace ddp_adapter
