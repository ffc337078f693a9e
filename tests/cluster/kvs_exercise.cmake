# A rank that puts, fences and gets over the launcher's own key-value service; run by the cluster tests under srun.
add_executable(kvs_exercise ${CMAKE_CURRENT_LIST_DIR}/kvs_exercise.cpp)
target_include_directories(kvs_exercise PRIVATE ${PROJECT_SOURCE_DIR}/libddp/src)
target_link_libraries(kvs_exercise PRIVATE ddp_kvs ddp_options)
