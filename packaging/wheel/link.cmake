# Read after project(): links everything against DDP_OLD_LIBRARIES, and takes in what users' machines may lack from
# DDP_INSIDE (packaging/wheel/parts).
# Compiling is as always, so that the compiler cache serves.
foreach(kind EXE SHARED MODULE)
  string(APPEND CMAKE_${kind}_LINKER_FLAGS " -B${DDP_OLD_LIBRARIES} -L${DDP_OLD_LIBRARIES} -Wl,--exclude-libs,ALL")
endforeach()
# Debian's fmt is shared only.
cmake_language(DEFER CALL set_target_properties fmt::fmt PROPERTIES IMPORTED_LOCATION ${DDP_INSIDE}/libfmt.a
  IMPORTED_LOCATION_NONE ${DDP_INSIDE}/libfmt.a IMPORTED_LOCATION_RELWITHDEBINFO ${DDP_INSIDE}/libfmt.a
  IMPORTED_LOCATION_RELEASE ${DDP_INSIDE}/libfmt.a IMPORTED_SONAME_NONE "")
# One file, by the name under which it is loaded: wheels have no links.
cmake_language(DEFER CALL set_target_properties ddp PROPERTIES VERSION ${DDP_SOVERSION})
# Else DDP_INSIDE would be a run path.
cmake_language(DEFER CALL set_target_properties ddp ddp_nccl ddprun ddp-info ddp-selftest ddp-step spank_ddp PROPERTIES
  INSTALL_RPATH_USE_LINK_PATH OFF)
