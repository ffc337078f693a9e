// All of libddp's public C++ interface.
#pragma once

#include <ddp/backend.hpp>
#include <ddp/batch.hpp>
#include <ddp/broadcast_coalesced.hpp>
#include <ddp/bytes.hpp>
#include <ddp/comm_hook.hpp>
#include <ddp/deadline.hpp>
#include <ddp/diagnostics.hpp>
#include <ddp/error.hpp>
#include <ddp/flight_recorder.hpp>
#include <ddp/key_value_store.hpp>
#include <ddp/operation.hpp>
#include <ddp/process_group.hpp>
#include <ddp/rank_device.hpp>
#include <ddp/reducer.hpp>
#include <ddp/tensor_view.hpp>
#include <ddp/topology.hpp>
#include <ddp/version.hpp>
#include <ddp/work.hpp>
#include <ddp/world.hpp>
