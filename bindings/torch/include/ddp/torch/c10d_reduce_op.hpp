// How c10d's operations combine values, in libddp's words.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <ATen/ATen.h>

#include <ddp/process_group.hpp>

#include <ddp/torch/tensor.hpp>

namespace ddp::torch {

/// Of values like those of @p tensor. Throws Error(invalid_argument) for those that libddp has not.
inline ReduceOp reduce_op(const ::c10d::ReduceOp& op, const at::Tensor& tensor) {
  switch (static_cast<::c10d::ReduceOp::RedOpType>(op)) {
    case ::c10d::ReduceOp::SUM: return ReduceOp::sum;
    case ::c10d::ReduceOp::AVG: return ReduceOp::avg;
    case ::c10d::ReduceOp::PRODUCT: return ReduceOp::product;
    case ::c10d::ReduceOp::MIN: return ReduceOp::min;
    case ::c10d::ReduceOp::MAX: return ReduceOp::max;
    case ::c10d::ReduceOp::BAND:
      if (tensor.scalar_type() == at::kBool) return ReduceOp::min;
      break;
    case ::c10d::ReduceOp::BOR:
      if (tensor.scalar_type() == at::kBool) return ReduceOp::max;
      break;
    default: break;
  }
  throw_invalid_argument("combining " + description_of(tensor), "libddp has no such c10d::ReduceOp",
                         "use SUM, AVG, PRODUCT, MIN or MAX");
}

}  // namespace ddp::torch
