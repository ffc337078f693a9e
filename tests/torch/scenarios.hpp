// What a rank of the tests with libtorch can be told to do. Each throws if something is not as it should be.
#pragma once

#include <stdexcept>
#include <string>

#include <ddp/ddp.hpp>

namespace torch_test {

inline void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not true: " + what);
}

/// Checks that @p action throws an Error with @p words in it; returns its code.
template <class Action>
ddp::ErrorCode error_of(const std::string& words, Action action) {
  try {
    action();
  } catch (const ddp::Error& error) {
    check(std::string{error.what()}.find(words) != std::string::npos, "'" + words + "' is in: " + error.what());
    return error.code();
  }
  throw std::runtime_error("no error with '" + words + "'");
}

/// 20 steps in every mode, compared with one process that has all the data.
void equal_to_one_process(ddp::ProcessGroup group);
/// Parameters, buffers and passes of all kinds.
void modules_of_all_kinds(ddp::ProcessGroup group);
/// Other element types on the wire and in passes, sparse gradients, delayed parameters.
void exchanges_of_all_kinds(ddp::ProcessGroup group);
/// The last rank kills itself in a backward pass; prints the ranks that the error names.
void killed_in_backward(ddp::ProcessGroup group);
/// Trains on the files of @p folder, as test_libtorch.py does with PyTorch's DistributedDataParallel.
void train_from_files(ddp::ProcessGroup group, const std::string& folder);

/// Every operation over tensors, and its errors.
void tensor_collectives(ddp::ProcessGroup group);
/// Every operation of c10d's Backend.
void c10d_collectives(ddp::ProcessGroup group);

}  // namespace torch_test
