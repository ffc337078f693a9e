# What stands around a training loop: samplers, metrics, checkpoints.
ddp_add_component(training
  SOURCES
    src/training/broadcast_state.cpp
    src/training/checkpoint.cpp
    src/training/checkpoint_folder.cpp
    src/training/checkpoint_manifest.cpp
    src/training/damaged_file.cpp
    src/training/distributed_sampler.cpp
    src/training/early_stop.cpp
    src/training/elastic_sampler.cpp
    src/training/equal_arguments.cpp
    src/training/file_checksum.cpp
    src/training/folder_owner.cpp
    src/training/joint_action.cpp
    src/training/metric_set.cpp
    src/training/object_collectives.cpp
    src/training/random_permutation.cpp
    src/training/rank_log.cpp
    src/training/rank_seed.cpp
    src/training/saver.cpp
    src/training/shard_file.cpp
    src/training/shard_index.cpp
    src/training/shares.cpp
  NEEDS reducer collectives base
  LIBRARIES PkgConfig::SODIUM)
