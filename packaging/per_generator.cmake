# Read by cpack once per generator.

# DESTDIR keeps cpack's staging folder out of files written at install time. Archives unpack anywhere, Debian packages
# under /usr.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /)
set(CPACK_PRE_BUILD_SCRIPTS ${CPACK_DDP_PACKAGING_FOLDER}/open_folders.cmake)
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_INSTALL_PREFIX /usr)
  list(PREPEND CPACK_PRE_BUILD_SCRIPTS ${CPACK_DDP_PACKAGING_FOLDER}/deb/finish.cmake)
else()
  list(PREPEND CPACK_PRE_BUILD_SCRIPTS ${CPACK_DDP_PACKAGING_FOLDER}/archive_conf.cmake)
endif()
