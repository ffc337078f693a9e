# Read by cpack once per generator.

# DESTDIR keeps cpack's staging folder out of files written at install time. Archives unpack anywhere, Debian packages
# under /usr.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /)
set(CPACK_PRE_BUILD_SCRIPTS ${CPACK_DDP_PACKAGING_FOLDER}/open_folders.cmake)
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_INSTALL_PREFIX /usr)
  unset(CPACK_PACKAGE_DESCRIPTION_SUMMARY)  # which cpack would put before each package's own
  list(PREPEND CPACK_PRE_BUILD_SCRIPTS ${CPACK_DDP_PACKAGING_FOLDER}/deb/python.cmake ${CPACK_DDP_PACKAGING_FOLDER}/deb/finish.cmake)
else()
  list(PREPEND CPACK_PRE_BUILD_SCRIPTS ${CPACK_DDP_PACKAGING_FOLDER}/archive_conf.cmake)
endif()

# cpack -D CPACK_DDP_WHEEL=FILE: the package of Python, too. A wheel's name says which Python it is for.
if(CPACK_GENERATOR STREQUAL "DEB" AND CPACK_DDP_WHEEL)
  get_filename_component(CPACK_DDP_WHEEL ${CPACK_DDP_WHEEL} ABSOLUTE)
  get_filename_component(name ${CPACK_DDP_WHEEL} NAME)
  if(NOT EXISTS ${CPACK_DDP_WHEEL} OR NOT name MATCHES "^libddp-${CPACK_PACKAGE_VERSION}-cp3([0-9]+)-(cp3[0-9]+|abi3)-")
    message(FATAL_ERROR "CPACK_DDP_WHEEL=${CPACK_DDP_WHEEL} is no wheel of libddp ${CPACK_PACKAGE_VERSION}; "
                        "make it with scripts/python-package")
  endif()
  set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.${CMAKE_MATCH_1})")
  if(NOT CMAKE_MATCH_2 STREQUAL "abi3")
    math(EXPR next "${CMAKE_MATCH_1} + 1")
    string(APPEND CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS ", python3 (<< 3.${next}~)")
  endif()
  list(APPEND CPACK_COMPONENTS_ALL python)
endif()
