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

# ddp_find_when_opened(PREFIX): for a library that libddp and its programs open while they run. ddp_<prefix>_headers is
# what compiling needs of it; ddp_<prefix>_run_path has the folders that the loader would not look into by itself, for the
# run paths of what opens it (the build tree's have them here).
function(ddp_find_when_opened prefix)
  string(TOLOWER ${prefix} name)
  add_library(ddp_${name}_headers INTERFACE)
  target_include_directories(ddp_${name}_headers SYSTEM INTERFACE
    $<BUILD_INTERFACE:$<TARGET_PROPERTY:PkgConfig::${prefix},INTERFACE_INCLUDE_DIRECTORIES>>)

  set(folders "")
  get_target_property(libraries PkgConfig::${prefix} INTERFACE_LINK_LIBRARIES)
  foreach(library IN LISTS libraries)
    if(IS_ABSOLUTE "${library}")
      get_filename_component(folder ${library} DIRECTORY)
      list(APPEND folders ${folder})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  list(REMOVE_ITEM folders ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES})
  set(ddp_${name}_run_path ${folders} PARENT_SCOPE)
  set(CMAKE_BUILD_RPATH ${CMAKE_BUILD_RPATH} ${folders} PARENT_SCOPE)
endfunction()
