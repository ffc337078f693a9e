# Where a process is.
ddp_add_component(stacks
  SOURCES
    src/diagnostics/stacks/proc_stack.cpp
    src/diagnostics/stacks/stack_gatherer.cpp
    src/diagnostics/stacks/stack_tools.cpp
  NEEDS base)

# Who hangs in a job, and its metrics: for programs, no part of libddp.so.
add_library(ddp_hang STATIC
  src/diagnostics/hang/hang_inquiry.cpp
  src/diagnostics/hang/hang_judge.cpp
  src/diagnostics/hang/hang_report.cpp
  src/diagnostics/hang/nccl_ras.cpp
  src/diagnostics/hang/observe.cpp
  src/diagnostics/hang/proc_file.cpp
  src/diagnostics/hang/process_table.cpp
  src/diagnostics/hang/torch_recorder.cpp
  src/diagnostics/hang/standstill_watch.cpp
  src/diagnostics/hang/torch_pickle.cpp
  src/diagnostics/hang/torch_worker_server.cpp
  src/diagnostics/hang/whereabouts.cpp)
target_link_libraries(ddp_hang PUBLIC ddp_stacks ddp_flight ddp_base PRIVATE nlohmann_json::nlohmann_json ddp_options)
add_library(ddp_metrics STATIC
  src/diagnostics/metrics/event_log.cpp
  src/diagnostics/metrics/metrics_endpoint.cpp
  src/diagnostics/metrics/metrics_page.cpp
  src/diagnostics/metrics/training_metrics.cpp
  src/diagnostics/metrics/watched_ranks.cpp)
target_link_libraries(ddp_metrics PUBLIC ddp_hang ddp_flight ddp_stream ddp_base PRIVATE fmt::fmt nlohmann_json::nlohmann_json ddp_options)
ddp_use_precompiled_headers(ddp_hang ddp_metrics)
