# Compiles device code: ddp_add_fat_binary(NAME SOURCE...) makes ${PROJECT_BINARY_DIR}/device/NAME.fatbin, by the target
# NAME, where DDP_NVCC is; DDP_WHY_NO_DEVICE_CODE says why it is not. nvcc comes with the toolkit, or with NVIDIA's wheels
# (nvidia-cuda-nvcc); nothing of CUDA is linked. Sanitizers do not look into devices, so their builds go without.

set(DDP_WHY_NO_DEVICE_CODE "")
unset(DDP_NVCC CACHE)
if(DDP_WITH_CUDA AND DDP_SANITIZE)
  set(DDP_WHY_NO_DEVICE_CODE "this is a sanitizer's build")
elseif(DDP_WITH_CUDA)
  if(DDP_CUDA_ROOT)
    file(GLOB ddp_nvcc_wheels ${DDP_CUDA_ROOT}/lib/python3*/site-packages/nvidia/cu13)
    set(ddp_nvcc_places ${DDP_CUDA_ROOT} ${ddp_nvcc_wheels})
  else()
    file(GLOB ddp_nvcc_wheels ${PROJECT_SOURCE_DIR}/build/cuda/lib/python3*/site-packages/nvidia/cu13)
    set(ddp_nvcc_places $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda ${ddp_nvcc_wheels})
  endif()
  find_program(DDP_NVCC nvcc HINTS ${ddp_nvcc_places} PATH_SUFFIXES bin NO_DEFAULT_PATH)
  if(DDP_NVCC)
    execute_process(COMMAND ${DDP_NVCC} --list-gpu-code OUTPUT_VARIABLE ddp_gpu_codes RESULT_VARIABLE ddp_nvcc_status
      ERROR_VARIABLE ddp_nvcc_error)
  else()
    list(JOIN ddp_nvcc_places ", " ddp_nvcc_places)
    set(DDP_WHY_NO_DEVICE_CODE "no nvcc in ${ddp_nvcc_places}; set DDP_CUDA_ROOT to a toolkit of CUDA 12 or 13")
  endif()
  if(DDP_NVCC AND NOT ddp_nvcc_status EQUAL 0)
    set(DDP_WHY_NO_DEVICE_CODE "${DDP_NVCC} --list-gpu-code failed: ${ddp_nvcc_error}")
    unset(DDP_NVCC CACHE)
  endif()
endif()
mark_as_advanced(DDP_NVCC)

# Code for each of these that this nvcc knows (sm_100 is known since CUDA 12.8), and PTX of the last one for devices to come.
set(ddp_device_code_options)
foreach(architecture 80 90 100)
  if(ddp_gpu_codes MATCHES "sm_${architecture}\n")
    list(APPEND ddp_device_code_options "-gencode=arch=compute_${architecture},code=sm_${architecture}")
    set(ddp_last_architecture ${architecture})
  endif()
endforeach()
list(APPEND ddp_device_code_options
  "-gencode=arch=compute_${ddp_last_architecture},code=compute_${ddp_last_architecture}")
# nvcc knows compilers up to a release of its own time.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND ddp_device_code_options -ccbin=${CMAKE_CXX_COMPILER})
endif()

function(ddp_add_fat_binary name source)
  set(file ${PROJECT_BINARY_DIR}/device/${name}.fatbin)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/device)
  # nvcc does not escape blanks of targets, with which Ninja would find none: relative, it has none.
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} OUTPUT_VARIABLE target)
  # Without contraction, as on processors: a fused multiply-add gives other bits.
  add_custom_command(OUTPUT ${file}
    COMMAND ${DDP_NVCC} -std=c++20 -O3 -fmad=false --fatbin -Xfatbin=-compress-all -allow-unsupported-compiler
      ${ddp_device_code_options} -I${PROJECT_SOURCE_DIR}/libddp/src -MD -MF ${file}.d -MT ${target} -o ${file} ${source}
    DEPENDS ${source}
    DEPFILE ${file}.d
    COMMENT "Compiling device code ${name}"
    VERBATIM)
  add_custom_target(${name} DEPENDS ${file})
endfunction()
