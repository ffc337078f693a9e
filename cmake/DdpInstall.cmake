# What other projects find libddp by: a CMake package and a pkg-config file. Neither names a prefix, so that an installation
# may be moved as a whole.
include(CMakePackageConfigHelpers)
include(DdpBuildFolder)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ddp)
install(EXPORT ddpTargets NAMESPACE ddp:: DESTINATION ${package_folder} COMPONENT development)

set(DDP_PLUGIN_FOLDER ${CMAKE_INSTALL_LIBDIR})
set(DDP_TORCH_INCLUDE_FOLDER ${CMAKE_INSTALL_INCLUDEDIR})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ddpConfig.cmake.in ${PROJECT_BINARY_DIR}/ddpConfig.cmake
  INSTALL_DESTINATION ${package_folder}
  PATH_VARS DDP_PLUGIN_FOLDER DDP_TORCH_INCLUDE_FOLDER
  NO_SET_AND_CHECK_MACRO
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a minor version may break the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ddpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ddpConfig.cmake ${PROJECT_BINARY_DIR}/ddpConfigVersion.cmake
  DESTINATION ${package_folder} COMPONENT development)

# The headers for libtorch, which nothing here needs: bindings/torch.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/bindings/torch/include/ddp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN *.hpp)

# The same package for projects that use this build folder: ddp_DIR=<build folder>/package.
set(DDP_PLUGIN_FOLDER ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(DDP_TORCH_INCLUDE_FOLDER ${PROJECT_SOURCE_DIR}/bindings/torch/include)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ddpConfig.cmake.in ${PROJECT_BINARY_DIR}/package/ddpConfig.cmake
  INSTALL_DESTINATION ${PROJECT_BINARY_DIR}/package
  PATH_VARS DDP_PLUGIN_FOLDER DDP_TORCH_INCLUDE_FOLDER
  NO_SET_AND_CHECK_MACRO
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
configure_file(${PROJECT_BINARY_DIR}/ddpConfigVersion.cmake ${PROJECT_BINARY_DIR}/package/ddpConfigVersion.cmake COPYONLY)
export(EXPORT ddpTargets NAMESPACE ddp:: FILE ${PROJECT_BINARY_DIR}/package/ddpTargets.cmake)

set(pc_folder ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH DDP_PC_TO_PREFIX ${pc_folder} ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH DDP_PC_TO_LIBRARY ${pc_folder} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH DDP_PC_TO_INCLUDE ${pc_folder} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
foreach(way DDP_PC_TO_PREFIX DDP_PC_TO_LIBRARY DDP_PC_TO_INCLUDE)
  string(REGEX REPLACE "/$" "" ${way} "${${way}}")
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/ddp.pc.in ${PROJECT_BINARY_DIR}/ddp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ddp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# Pages link each other as in the source tree, so they lie in the same order.
foreach(pages README.md CHANGELOG.md LICENSE SECURITY.md SUPPORT.md docs)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${pages})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${pages} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime FILES_MATCHING PATTERN *.md)
  else()
    install(FILES ${PROJECT_SOURCE_DIR}/${pages} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
  endif()
endforeach()

install(FILES ${PROJECT_SOURCE_DIR}/contrib/grafana/libddp.json DESTINATION ${CMAKE_INSTALL_DATADIR}/libddp/grafana
  COMPONENT runtime)
install(FILES ${PROJECT_SOURCE_DIR}/contrib/prometheus/alerts.yml DESTINATION ${CMAKE_INSTALL_DATADIR}/libddp/prometheus
  COMPONENT runtime)

# README.md's link to the example.
file(RELATIVE_PATH to_examples ${CMAKE_INSTALL_FULL_DOCDIR} ${CMAKE_INSTALL_FULL_DATADIR}/libddp/examples)
file(CREATE_LINK ${to_examples} ${PROJECT_BINARY_DIR}/examples_of_documents SYMBOLIC)
install(FILES ${PROJECT_BINARY_DIR}/examples_of_documents DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME examples COMPONENT development)

# A site that wants the plugin must hear that there is none, when it configures and when it installs.
if(NOT TARGET spank_ddp)
  if(DDP_BUILD_SLURM_PLUGIN)
    set(DDP_WHY_NO_PLUGIN "slurm/spank.h was not found: install Slurm's headers (Debian: libslurm-dev, Enterprise Linux: slurm-devel) or \
set -DSLURM_INCLUDE_DIR=FOLDER, and configure again. -DDDP_BUILD_SLURM_PLUGIN=OFF if it is not wanted.")
  else()
    set(DDP_WHY_NO_PLUGIN "DDP_BUILD_SLURM_PLUGIN is OFF.")
  endif()
  install(CODE "message(FATAL_ERROR [==[There is no plugin for srun (srun --ddp) to install. ${DDP_WHY_NO_PLUGIN}]==])"
    COMPONENT slurm_plugin EXCLUDE_FROM_ALL)
endif()
