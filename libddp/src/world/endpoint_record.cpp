#include "world/endpoint_record.hpp"

#include "base/message.hpp"

namespace ddp::world {

Bytes encode(const EndpointRecord& record) {
  EndpointRecord fitting = record;
  if (fitting.addresses.size() > topology::kMostCandidates) fitting.addresses.resize(topology::kMostCandidates);
  while (fitting.addresses.size() > 1 && !base::fits(fitting)) fitting.addresses.pop_back();
  return base::encode(fitting);
}

}  // namespace ddp::world
