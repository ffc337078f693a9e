# Debian's pmix.pc names a folder of PMIx's own and an -rpath to it, although the same library lies where the loader looks
# by itself. Programs that carried that path would name a folder of another package for nothing.

# ddp_drop_needless_rpath(PREFIX NAME): PkgConfig::PREFIX, which pkg_check_modules made, loses its -rpath options, since
# CMake sets the paths that are needed; and its library NAME is linked from the loader's folders if it is the same file there.
function(ddp_drop_needless_rpath prefix name)
  get_target_property(options PkgConfig::${prefix} INTERFACE_LINK_OPTIONS)
  if(options)
    string(REGEX REPLACE "-Wl,-rpath(;-Wl,|[,=])[^;]*;?" "" options "${options}")
    set_property(TARGET PkgConfig::${prefix} PROPERTY INTERFACE_LINK_OPTIONS "${options}")
  endif()

  set(found ${pkgcfg_lib_${prefix}_${name}})
  find_library(DDP_${prefix}_OF_LOADER ${name} PATHS ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES} NO_DEFAULT_PATH)
  mark_as_advanced(DDP_${prefix}_OF_LOADER)
  if(NOT found OR NOT DDP_${prefix}_OF_LOADER)
    return()
  endif()
  file(REAL_PATH ${found} real)
  file(REAL_PATH ${DDP_${prefix}_OF_LOADER} real_of_loader)
  if(real STREQUAL real_of_loader)
    get_target_property(libraries PkgConfig::${prefix} INTERFACE_LINK_LIBRARIES)
    list(TRANSFORM libraries REPLACE "^${found}$" "${DDP_${prefix}_OF_LOADER}")
    set_property(TARGET PkgConfig::${prefix} PROPERTY INTERFACE_LINK_LIBRARIES "${libraries}")
  endif()
endfunction()
