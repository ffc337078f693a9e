// All of libddp's public C++ interface.
#pragma once

#if __cplusplus < 202002L
#error "libddp needs -std=c++20"
#endif

#include <ddp/backend.hpp>
#include <ddp/batch.hpp>
#include <ddp/broadcast_coalesced.hpp>
#include <ddp/broadcast_state.hpp>
#include <ddp/bytes.hpp>
#include <ddp/checkpoint.hpp>
#include <ddp/comm_hook.hpp>
#include <ddp/comm_hooks.hpp>
#include <ddp/ddp_log.hpp>
#include <ddp/deadline.hpp>
#include <ddp/diagnostics.hpp>
#include <ddp/distributed_sampler.hpp>
#include <ddp/early_stop.hpp>
#include <ddp/elastic_sampler.hpp>
#include <ddp/error.hpp>
#include <ddp/flight_recorder.hpp>
#include <ddp/job_secret.hpp>
#include <ddp/join.hpp>
#include <ddp/key_value_store.hpp>
#include <ddp/metric_set.hpp>
#include <ddp/model_averaging.hpp>
#include <ddp/named_operations.hpp>
#include <ddp/object_collectives.hpp>
#include <ddp/operation.hpp>
#include <ddp/process_group.hpp>
#include <ddp/python_prefix.hpp>
#include <ddp/rank_device.hpp>
#include <ddp/rank_log.hpp>
#include <ddp/rank_seed.hpp>
#include <ddp/recorded_order.hpp>
#include <ddp/reducer.hpp>
#include <ddp/sealed_store.hpp>
#include <ddp/tensor_executor.hpp>
#include <ddp/tensor_view.hpp>
#include <ddp/topology.hpp>
#include <ddp/torch_store.hpp>
#include <ddp/version.hpp>
#include <ddp/wait_watch.hpp>
#include <ddp/work.hpp>
#include <ddp/world.hpp>

/// Ranks, collectives and averaged gradients for data-parallel programs.
namespace ddp {}
