# Read by cpack once for each kind of package that it makes.

# What is written at install time shall not name cpack's staging folder: DESTDIR hides it. An archive can be unpacked
# anywhere, a Debian package has its place.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /)
set(CPACK_PRE_BUILD_SCRIPTS ${CPACK_DDP_PACKAGING_FOLDER}/open_folders.cmake)
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_INSTALL_PREFIX /usr)
  list(PREPEND CPACK_PRE_BUILD_SCRIPTS ${CPACK_DDP_PACKAGING_FOLDER}/deb/finish.cmake)
endif()
