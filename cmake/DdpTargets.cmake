# Functions that make the project's targets, so that every component gets the same warnings, sanitizers and shape.

add_library(ddp_options INTERFACE)
target_compile_options(ddp_options INTERFACE -Wall -Wextra -Wpedantic -Wnon-virtual-dtor)
if(CMAKE_UNITY_BUILD)  # which makes one file of several: what is local to one may have the name of another's local variable
  target_compile_options(ddp_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage;-Wshadow=local>)
else()
  target_compile_options(ddp_options INTERFACE -Wshadow)
endif()
# GCC 12 warns of std::string's own operator+ at -O3 (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(ddp_options INTERFACE -Wno-restrict)
endif()
# GCC looks for garbage at 128 MiB by itself; compiling takes 8 % less time if it lets 512 MiB lie.
target_compile_options(ddp_options INTERFACE "$<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=524288>")
if(DDP_WARNINGS_AS_ERRORS)
  target_compile_options(ddp_options INTERFACE -Werror)
endif()
if(DDP_SANITIZE)
  target_compile_options(ddp_options INTERFACE -fsanitize=${DDP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # For what tests measure or forbid; compilers tell in different ways.
  if(DDP_SANITIZE MATCHES "thread")
    target_compile_definitions(ddp_options INTERFACE DDP_SANITIZED DDP_THREAD_SANITIZER)
  else()
    target_compile_definitions(ddp_options INTERFACE DDP_SANITIZED DDP_ADDRESS_SANITIZER)
  endif()
  # Functions and codes of libraries that are opened on demand are declared here, in C's way. A null pointer that is used
  # ends the program anyway, and the check of virtual calls doubles what is compiled, for what ASan finds, too.
  # The check of alignment is a quarter of what compiling takes; it is for code that casts bytes to wider types.
  define_property(TARGET PROPERTY DDP_NO_ALIGNMENT_CHECK INITIALIZE_FROM_VARIABLE DDP_NO_ALIGNMENT_CHECK)
  target_compile_options(ddp_options INTERFACE
    $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function,enum,null,vptr$<$<BOOL:$<TARGET_PROPERTY:DDP_NO_ALIGNMENT_CHECK>>:,alignment>>)
  target_link_options(ddp_options INTERFACE -fsanitize=${DDP_SANITIZE})
endif()

# Parsing headers of other libraries is most of compiling. These are compiled once, for static libraries and plugins. None is
# the project's own: a change would compile everything anew. In <>, so that no path of the checkout enters the compiler cache.
# Packagers' flags go without: GCC 12 crashes on some that differ from the header's.
if(NOT DEFINED CMAKE_DISABLE_PRECOMPILE_HEADERS AND NOT DDP_BUILD_TESTS)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled_headers.cpp CONTENT "")
add_library(ddp_precompiled_headers OBJECT ${PROJECT_BINARY_DIR}/precompiled_headers.cpp)
target_link_libraries(ddp_precompiled_headers PRIVATE fmt::fmt ddp_options)
target_precompile_headers(ddp_precompiled_headers PRIVATE
  <algorithm> <array> <chrono> <cstdint> <cstring> <filesystem> <functional> <map> <memory> <mutex> <optional> <set> <span>
  <string> <string_view> <utility> <variant> <vector> <fmt/format.h> <fmt/ranges.h>)
# With the time in them, what uses them is never found in the compiler cache.
set(DDP_PRECOMPILING_OPTIONS "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
target_compile_options(ddp_precompiled_headers PRIVATE ${DDP_PRECOMPILING_OPTIONS})

# ddp_use_precompiled_headers(TARGET...): for position-independent code that links fmt::fmt; GCC wants equal flags.
function(ddp_use_precompiled_headers)
  foreach(target ${ARGN})
    target_precompile_headers(${target} REUSE_FROM ddp_precompiled_headers)
  endforeach()
endfunction()

# ddp_add_component(NAME [OPTIMIZED] SOURCES a.cpp ... NEEDS component ... LIBRARIES target ...)
# A component is a static library, so code that uses one it does not name in NEEDS fails to link. libddp.so is made of the
# same object files. OPTIMIZED: with sanitizers, too, where its tests gain more time than compiling takes.
function(ddp_add_component name)
  cmake_parse_arguments(COMPONENT "OPTIMIZED" "" "SOURCES;NEEDS;LIBRARIES" ${ARGN})
  list(TRANSFORM COMPONENT_NEEDS PREPEND ddp_)
  add_library(ddp_${name}_objects OBJECT ${COMPONENT_SOURCES})
  add_library(ddp_${name} STATIC $<TARGET_OBJECTS:ddp_${name}_objects>)
  foreach(target ddp_${name}_objects ddp_${name})
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/libddp/include ${PROJECT_SOURCE_DIR}/libddp/src)
    target_link_libraries(${target} PUBLIC ${COMPONENT_NEEDS} ${COMPONENT_LIBRARIES} PRIVATE ddp_options)
  endforeach()
  if(COMPONENT_OPTIMIZED AND DDP_SANITIZE)  # precompiled headers are not optimized
    target_compile_options(ddp_${name}_objects PRIVATE ${DDP_LOOP_OPTIMIZATION})
  else()
    ddp_use_precompiled_headers(ddp_${name}_objects)
  endif()
  target_sources(ddp PRIVATE $<TARGET_OBJECTS:ddp_${name}_objects>)
  target_link_libraries(ddp PRIVATE ${COMPONENT_LIBRARIES})
endfunction()

# ddp_define_operator_new(TEST): for a test that defines operator new. Clang's thread sanitizer does so, too, for programs
# linked as C++.
function(ddp_define_operator_new test)
  if(DDP_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set_target_properties(${test} PROPERTIES LINKER_LANGUAGE C)
    target_link_libraries(${test} PRIVATE stdc++ m)
  endif()
endfunction()

# ddp_use_test_headers(TARGET...): programs of tests include support/test_headers.hpp, precompiled; GCC wants equal flags.
function(ddp_use_test_headers)
  foreach(target ${ARGN})
    if(CMAKE_DISABLE_PRECOMPILE_HEADERS)
      target_compile_options(${target} PRIVATE "SHELL:-include ${PROJECT_SOURCE_DIR}/tests/support/test_headers.hpp")
    endif()
    target_precompile_headers(${target} REUSE_FROM ddp_test_headers)
    target_link_libraries(${target} PRIVATE fmt::fmt GTest::gmock)  # whose definitions are among the flags
  endforeach()
endfunction()

# ddp_add_test(NAME LABEL unit|multiproc SOURCES a.cpp ... LIBRARIES target ... [TIMEOUT seconds] [COST seconds])
# One GoogleTest program, one ctest entry. COST: with a sanitizer; who takes longest starts first.
function(ddp_add_test name)
  cmake_parse_arguments(TEST "" "LABEL;TIMEOUT;COST" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 600)
  endif()
  if(NOT TEST_COST)
    set(TEST_COST 0)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  ddp_use_test_headers(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/libddp/src ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${TEST_LIBRARIES} ddp_gtest_main ddp_options)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${TEST_LABEL} TIMEOUT ${TEST_TIMEOUT} COST ${TEST_COST})
  add_dependencies(ctest_programs ${name})
endfunction()
