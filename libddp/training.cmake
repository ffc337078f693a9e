# What stands around a training loop: samplers, metrics, checkpoints.
ddp_add_component(training
  SOURCES
    src/training/object_collectives.cpp
    src/training/checkpoint.cpp
    src/training/checkpoint_copies.cpp
    src/training/checkpoint_folder.cpp
    src/training/checkpoint_manifest.cpp
    src/training/shard_file.cpp
    src/training/samplers.cpp
    src/training/metric_set.cpp
    src/training/folder_owner.cpp
    src/training/saver.cpp
  NEEDS reducer collectives base
  LIBRARIES PkgConfig::SODIUM)
