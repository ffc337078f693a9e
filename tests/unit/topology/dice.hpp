// Random numbers that are the same on every computer for the same seed. The distributions of <random> are not: each
// standard library has its own.
#pragma once

namespace ddp::test {

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed) {}

  /// Both ends included.
  int between(int low, int high) {
    return low + static_cast<int>(engine_() % (static_cast<std::uint32_t>(high - low) + 1));
  }
  bool one_in(int n) { return between(1, n) == 1; }

  template <class Value>
  void shuffle(std::vector<Value>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<std::size_t>(between(0, static_cast<int>(i) - 1))]);
    }
  }

 private:
  std::mt19937 engine_;
};

}  // namespace ddp::test
