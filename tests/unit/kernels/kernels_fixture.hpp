// Runs a test in each place where kernels run.
#pragma once

#include <gtest/gtest.h>

#include "unit/kernels/place.hpp"

namespace ddp::kernels {

class KernelsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string why;
    place_ = make_place(GetParam(), why);
    if (!place_) GTEST_SKIP() << why;
  }
  Place& place() { return *place_; }

 private:
  std::unique_ptr<Place> place_;
};

}  // namespace ddp::kernels
