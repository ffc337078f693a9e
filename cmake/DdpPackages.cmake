# Packages: cpack --config <build folder>/CPackConfig.cmake makes libddp, libddp-dev and slurm-plugin-ddp for Debian, and
# one archive of everything; with -D CPACK_DDP_WHEEL=FILE, python3-libddp, too. packaging/rpm/libddp.spec makes those for rpm,
# from the sources.

set(CPACK_PACKAGE_NAME libddp)
set(CPACK_PACKAGE_VENDOR libddp)
set(CPACK_PACKAGE_CONTACT "libddp maintainers <libddp@invalid>" CACHE STRING "Who made these packages, with a mail address")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "launcher and library for data-parallel training on HPC clusters")
set(CPACK_PACKAGE_DESCRIPTION "libddp starts data-parallel training jobs under Slurm, PMIx or by
hand, places their ranks by the topology of the nodes, and averages gradients.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME libddp-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR TGZ)
find_program(DDP_DPKG_DEB dpkg-deb)
mark_as_advanced(DDP_DPKG_DEB)
if(DDP_DPKG_DEB)
  list(PREPEND CPACK_GENERATOR DEB)
endif()
# What differs between the kinds of packages is decided when cpack runs.
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/packaging/per_generator.cmake)
set(CPACK_DDP_PACKAGING_FOLDER ${PROJECT_SOURCE_DIR}/packaging)

# slurm_plugin is there only where Slurm's headers were.
set(CPACK_COMPONENTS_ALL runtime development)
if(TARGET spank_ddp)
  list(APPEND CPACK_COMPONENTS_ALL slurm_plugin)
endif()
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS runtime)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libddp)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS "libpmix2 | libpmix2t64")  # which nothing links
# What packages of programs that link libddp.so depend on. (cpack's own list would want plugins to have versions.)
math(EXPR next "${PROJECT_VERSION_MAJOR} + 1")
if(PROJECT_VERSION_MAJOR EQUAL 0)
  math(EXPR next "${PROJECT_VERSION_MINOR} + 1")
  set(next 0.${next})
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/packages/shlibs CONTENT
  "libddp @DDP_SOVERSION@ libddp (>= @PROJECT_VERSION@), libddp (<< @next@)\n" @ONLY)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA
  ${PROJECT_BINARY_DIR}/packages/shlibs ${PROJECT_SOURCE_DIR}/packaging/deb/triggers)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "munge")  # opened on demand
# Each begins with its synopsis (packaging/per_generator.cmake).
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "launcher and library for data-parallel training on HPC clusters
${CPACK_PACKAGE_DESCRIPTION}
.
This package has the library, the launcher ddprun and the tool ddp-info.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libddp-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "cmake, pkg-config, libfmt-dev, libcli11-dev")  # the example's
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "headers of libddp, a library for data-parallel training
${CPACK_PACKAGE_DESCRIPTION}
.
This package has the headers, what CMake and pkg-config find them by, and an
example.")

set(CPACK_DEBIAN_SLURM_PLUGIN_PACKAGE_NAME slurm-plugin-ddp)
set(CPACK_DEBIAN_SLURM_PLUGIN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_SLURM_PLUGIN_PACKAGE_SHLIBDEPS ON)
foreach(script conffiles postinst postrm prerm)
  list(APPEND CPACK_DEBIAN_SLURM_PLUGIN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/packaging/deb/slurm-plugin/${script})
endforeach()
set(CPACK_DEBIAN_SLURM_PLUGIN_DESCRIPTION "plugin of Slurm for data-parallel training (srun --ddp)
${CPACK_PACKAGE_DESCRIPTION}
.
This package has the SPANK plugin that lets srun do what ddprun does.")

# A component that is there with a wheel (packaging/per_generator.cmake).
set(CPACK_COMPONENT_PYTHON_DEPENDS runtime)
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-libddp)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})  # libddp.so, of another package
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS "python3-numpy")
foreach(script postinst prerm)
  list(APPEND CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/packaging/deb/python/${script})
endforeach()
set(CPACK_DEBIAN_PYTHON_DESCRIPTION "Python package of libddp, with torch.distributed's backend ddp
${CPACK_PACKAGE_DESCRIPTION}
.
This package has the Python package, with torch.distributed's backend ddp.")

# Slurm refuses a SPANK plugin of another major release, which its first two numbers name. The packages that load plugins
# are called slurm-wlm-basic-plugins by Debian and slurm-smd by Slurm's makers.
find_file(DDP_SLURM_VERSION_HEADER slurm/slurm_version.h)
mark_as_advanced(DDP_SLURM_VERSION_HEADER)
if(DDP_SLURM_VERSION_HEADER)
  file(STRINGS ${DDP_SLURM_VERSION_HEADER} line REGEX "define SLURM_VERSION_NUMBER +0x[0-9a-f]+")
  string(REGEX MATCH "0x[0-9a-f]+" number "${line}")
  math(EXPR year "(${number} >> 16) & 255")
  math(EXPR month "(${number} >> 8) & 255")
  math(EXPR next_month "${month} + 1")
  foreach(part year month next_month)
    string(REGEX REPLACE "^(.)$" "0\\1" ${part} ${${part}})
  endforeach()
  foreach(bound ">= ${year}.${month}" "<< ${year}.${next_month}~")
    list(APPEND slurm_packages "slurm-wlm-basic-plugins (${bound}) | slurm-smd (${bound})")
  endforeach()
  list(JOIN slurm_packages ", " CPACK_DEBIAN_SLURM_PLUGIN_PACKAGE_DEPENDS)
endif()

include(CPack)
