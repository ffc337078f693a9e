# What other projects find libddp by: a CMake package and a pkg-config file. Neither names a prefix, so that an installation
# may be moved as a whole.
include(CMakePackageConfigHelpers)
include(DdpBuildFolder)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ddp)
install(EXPORT ddpTargets NAMESPACE ddp:: DESTINATION ${package_folder} COMPONENT development)

set(DDP_PLUGIN_FOLDER ${CMAKE_INSTALL_LIBDIR})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ddpConfig.cmake.in ${PROJECT_BINARY_DIR}/ddpConfig.cmake
  INSTALL_DESTINATION ${package_folder}
  PATH_VARS DDP_PLUGIN_FOLDER
  NO_SET_AND_CHECK_MACRO
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a minor version may break the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ddpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ddpConfig.cmake ${PROJECT_BINARY_DIR}/ddpConfigVersion.cmake
  DESTINATION ${package_folder} COMPONENT development)

set(pc_folder ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH DDP_PC_TO_PREFIX ${pc_folder} ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH DDP_PC_TO_LIBRARY ${pc_folder} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH DDP_PC_TO_INCLUDE ${pc_folder} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
foreach(way DDP_PC_TO_PREFIX DDP_PC_TO_LIBRARY DDP_PC_TO_INCLUDE)
  string(REGEX REPLACE "/$" "" ${way} "${${way}}")
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/ddp.pc.in ${PROJECT_BINARY_DIR}/ddp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ddp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
