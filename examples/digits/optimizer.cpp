#include "digits/optimizer.hpp"

#include <cstddef>

namespace digits {

template <class Scalar>
SgdMomentum<Scalar>::SgdMomentum(std::vector<NetworkParameter<Scalar>>& parameters, Scalar learning_rate,
                                 Scalar momentum)
    : parameters_(&parameters), learning_rate_(learning_rate), momentum_(momentum) {
  for (const auto& parameter : parameters) velocities_.emplace_back(parameter.value.size());
}

template <class Scalar>
void SgdMomentum<Scalar>::step() {
  for (std::size_t p = 0; p < velocities_.size(); ++p) {
    NetworkParameter<Scalar>& parameter = (*parameters_)[p];
    std::vector<Scalar>& velocity = velocities_[p];
    for (std::size_t i = 0; i < velocity.size(); ++i) {
      velocity[i] = momentum_ * velocity[i] + parameter.gradient[i];
      parameter.value[i] -= learning_rate_ * velocity[i];
    }
  }
}

template class SgdMomentum<float>;
template class SgdMomentum<double>;

}  // namespace digits
