# What must be installed to build libddp. All of it is looked for before the first find_package(... REQUIRED), so that one
# message names everything that is missing, and where it comes from.

find_package(PkgConfig QUIET)
set(ddp_missing "")
set(ddp_missing_deb "")
set(ddp_missing_rpm "")
set(ddp_missing_modules FALSE)

# ddp_need(FOUND DESCRIPTION DEBIAN ENTERPRISE_LINUX)
macro(ddp_need found description deb rpm)
  if(NOT ${found})
    list(APPEND ddp_missing "${description}")
    string(APPEND ddp_missing_deb " ${deb}")
    string(APPEND ddp_missing_rpm " ${rpm}")
  endif()
endmacro()

# ddp_need_module(MODULE DESCRIPTION DEBIAN ENTERPRISE_LINUX): of pkg-config. Its absence is nothing to remember: the user
# may install it and configure again.
macro(ddp_need_module module description deb rpm)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(DDP_NEEDED QUIET "${module}")
    if(NOT DDP_NEEDED_FOUND)
      set(ddp_missing_modules TRUE)
    endif()
  endif()
  if(PKG_CONFIG_FOUND)  # without it nothing is known of them
    ddp_need(DDP_NEEDED_FOUND "${description}" ${deb} ${rpm})
  endif()
endmacro()

ddp_need(PKG_CONFIG_FOUND "pkg-config" pkg-config pkgconf-pkg-config)
ddp_need_module("pmix" "PMIx with its headers (pmix.pc)" libpmix-dev pmix-devel)
ddp_need_module("hwloc>=2.5" "hwloc 2.5 or newer (hwloc.pc)" libhwloc-dev hwloc-devel)
ddp_need_module("libsodium" "libsodium (libsodium.pc)" libsodium-dev libsodium-devel)
find_package(fmt QUIET)
ddp_need(fmt_FOUND "{fmt}" libfmt-dev fmt-devel)
if(fmt_FOUND)  # else not even an installed one is found
  find_package(spdlog QUIET)
  ddp_need(spdlog_FOUND "spdlog" libspdlog-dev spdlog-devel)
endif()
find_package(pugixml QUIET)
ddp_need(pugixml_FOUND "pugixml" libpugixml-dev pugixml-devel)
find_package(nlohmann_json QUIET)
ddp_need(nlohmann_json_FOUND "nlohmann-json" nlohmann-json3-dev json-devel)
find_package(CLI11 QUIET)
ddp_need(CLI11_FOUND "CLI11" libcli11-dev cli11-devel)
set(ddp_missing_for_more "")
if(DDP_BUILD_TESTS)
  find_package(GTest QUIET)
  ddp_need(GTest_FOUND "GoogleTest" "libgtest-dev libgmock-dev" "gtest-devel gmock-devel")
  if(NOT GTest_FOUND)
    set(ddp_missing_for_more "\n  GoogleTest is for tests only:  scripts/build --without-tests, or cmake -DDDP_BUILD_TESTS=OFF")
  endif()
endif()

if(ddp_missing)
  list(JOIN ddp_missing ", " ddp_missing)
  set(ddp_missing_hint "")
  if(ddp_missing_modules)
    set(ddp_missing_hint
      "\n  From a module or folder of your site's:  PKG_CONFIG_PATH=FOLDER/lib/pkgconfig, where FOLDER/lib/pkgconfig/pmix.pc, say, is")
  endif()
  message(FATAL_ERROR
    "libddp cannot be built: these are missing, or not found: ${ddp_missing}.\n"
    "  Debian, Ubuntu:    apt-get install${ddp_missing_deb}\n"
    "                     scripts/dependencies build installs all that a build needs\n"
    "  Enterprise Linux:  dnf install${ddp_missing_rpm}   (CRB and EPEL enabled)"
    "${ddp_missing_hint}\n"
    "  What CMake finds by itself:  CMAKE_PREFIX_PATH=FOLDER"
    "${ddp_missing_for_more}")
endif()
