# CUDA by its driver API, which is opened on demand. No part of libddp.so: its users link it, beside ddp (plugins) or
# ddp_base (tests), whose functions it calls.
if(DDP_WITH_CUDA)
  add_library(ddp_cuda STATIC
    src/cuda/context.cpp
    src/cuda/driver.cpp
    src/cuda/stream.cpp)
  ddp_use_precompiled_headers(ddp_cuda)
  target_include_directories(ddp_cuda PUBLIC include src)
  target_link_libraries(ddp_cuda PUBLIC ddp_cuda_headers fmt::fmt ${CMAKE_DL_LIBS} PRIVATE ddp_options)

  # Kernels on devices; linked like ddp_cuda.
  add_library(ddp_device_kernels STATIC
    src/kernels/device/device_executor.cpp
    src/kernels/device/device_image.cpp)
  ddp_use_precompiled_headers(ddp_device_kernels)
  target_link_libraries(ddp_device_kernels PUBLIC ddp_cuda PRIVATE ddp_options)
  if(DDP_NVCC)
    ddp_add_fat_binary(ddp_kernels_image ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/device/kernels.cu)
    set(image ${PROJECT_BINARY_DIR}/device/ddp_kernels_image.fatbin)
    set_source_files_properties(src/kernels/device/device_image.cpp PROPERTIES
      COMPILE_DEFINITIONS DDP_DEVICE_IMAGE="${image}" OBJECT_DEPENDS ${image} SKIP_PRECOMPILE_HEADERS ON)
    add_dependencies(ddp_device_kernels ddp_kernels_image)
  elseif(DDP_SANITIZE)
    # The double of the driver looks at the first four bytes of an image only, and real devices see no sanitizers.
    string(ASCII 80 237 85 186 image_magic)
    file(WRITE ${PROJECT_BINARY_DIR}/device/stand_in.fatbin "${image_magic}")
    set_source_files_properties(src/kernels/device/device_image.cpp PROPERTIES
      COMPILE_DEFINITIONS DDP_DEVICE_IMAGE="${PROJECT_BINARY_DIR}/device/stand_in.fatbin" SKIP_PRECOMPILE_HEADERS ON)
  endif()
endif()
