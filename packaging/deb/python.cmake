# Between staging and packing of the Debian packages: what python3-libddp has, from the wheel CPACK_DDP_WHEEL. Library and
# ddp-info are those of the package libddp, of the same version.
if(NOT CPACK_DDP_WHEEL)
  return()
endif()
set(modules ${CPACK_TEMPORARY_DIRECTORY}/python/usr/lib/python3/dist-packages)
file(MAKE_DIRECTORY ${modules})
file(ARCHIVE_EXTRACT INPUT ${CPACK_DDP_WHEEL} DESTINATION ${modules})
file(REMOVE ${modules}/libddp-${CPACK_PACKAGE_VERSION}.dist-info/RECORD)  # else pip would replace what is dpkg's
file(WRITE ${modules}/libddp-${CPACK_PACKAGE_VERSION}.dist-info/INSTALLER debian)

file(GLOB_RECURSE files ${modules}/*)
foreach(file IN LISTS files)  # the packager's umask
  file(CHMOD ${file} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endforeach()

file(GLOB libraries RELATIVE ${modules}/libddp/lib ${modules}/libddp/lib/*)
foreach(library IN LISTS libraries)
  file(REMOVE ${modules}/libddp/lib/${library})
  file(CREATE_LINK ../../../../${library} ${modules}/libddp/lib/${library} SYMBOLIC)
endforeach()
foreach(program ddp-info ddprun)
  file(REMOVE ${modules}/libddp/bin/${program})
  file(CREATE_LINK ../../../../../bin/${program} ${modules}/libddp/bin/${program} SYMBOLIC)
endforeach()
