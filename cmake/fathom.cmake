# Compile options and the three functions every folder's CMakeLists.txt uses.
include_guard()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)

add_library(fathom_options INTERFACE)
target_include_directories(fathom_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
# -Wno-restrict: g++ 12 reports `"text" + std::string` falsely (GCC bug 105651).
# -ffp-contract=off: a fused multiply-add stands where the code says so and nowhere else; results must
# not depend on what the optimiser saw (row invariance).
target_compile_options(fathom_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Werror $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -ffp-contract=off -fno-omit-frame-pointer>)
target_link_libraries(fathom_options INTERFACE Threads::Threads)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
if(FATHOM_SANITIZE STREQUAL "address")
  target_compile_options(fathom_options INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-sanitize=vptr)
  target_link_options(fathom_options INTERFACE -fsanitize=address,undefined)
elseif(FATHOM_SANITIZE STREQUAL "thread")
  target_compile_options(fathom_options INTERFACE -fsanitize=thread)
  target_link_options(fathom_options INTERFACE -fsanitize=thread)
endif()
if(FATHOM_FUZZ)
  # clang warns about other things than g++, in the standard library too; g++ decides what is an error.
  target_compile_options(fathom_options INTERFACE -fsanitize=fuzzer-no-link -Wno-error)
endif()

# fathom_library(NAME DEPS ...): every .cc of the folder (not *_test.cc, *_bench.cc, testing/), as fathom_NAME.
# RECURSE takes the folders below it too.
function(fathom_library name)
  cmake_parse_arguments(ARG "RECURSE" "" "DEPS" ${ARGN})
  if(ARG_RECURSE)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  else()
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  endif()
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cc$|/testing/")
  if(sources)
    add_library(fathom_${name} STATIC ${sources})
    target_link_libraries(fathom_${name} PUBLIC fathom_options ${ARG_DEPS})
  else()  # headers only
    add_library(fathom_${name} INTERFACE)
    target_link_libraries(fathom_${name} INTERFACE fathom_options ${ARG_DEPS})
  endif()
endfunction()

# fathom_tests(NAME DEPS ...): one test program from the folder's *_test.cc (label quick), one from its
# *_full_test.cc (label full), one from its *_long_test.cc (label long).
function(fathom_tests name)
  if(NOT FATHOM_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "RECURSE" "" "DEPS" ${ARGN})
  find_package(GTest REQUIRED)
  if(ARG_RECURSE)
    file(GLOB_RECURSE all CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  else()
    file(GLOB all CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  endif()
  foreach(tier quick full long)
    set(sources ${all})
    if(tier STREQUAL "quick")
      list(FILTER sources EXCLUDE REGEX "_(full|long)_test\\.cc$")
      set(target ${name}_test)
    else()
      list(FILTER sources INCLUDE REGEX "_${tier}_test\\.cc$")
      set(target ${name}_${tier}_test)
    endif()
    if(sources)
      add_executable(${target} ${sources})
      target_link_libraries(${target} PRIVATE fathom_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
      target_compile_definitions(${target} PRIVATE FATHOM_SOURCE_DIR=".")
      add_test(NAME ${target} COMMAND ${target} --gtest_brief=1)
      set_tests_properties(${target} PROPERTIES LABELS ${tier} TIMEOUT 3600
        WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    endif()
  endforeach()
endfunction()

# CUDA units. FATHOM_CUDA_ARCHITECTURES: what the binary carries code for.
if(FATHOM_CUDA)
  set(FATHOM_CUDA_ARCHITECTURES "80-real;90a-real;120-real" CACHE STRING "CUDA architectures")
  set(CMAKE_CUDA_ARCHITECTURES ${FATHOM_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know nvcc's flag for this dialect.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit REQUIRED)
endif()

# fathom_cuda_library(NAME SOURCES...): a static library of .cu (and .cc) files, as fathom_NAME.
function(fathom_cuda_library name)
  add_library(fathom_${name} STATIC ${ARGN})
  target_include_directories(fathom_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(fathom_${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-O3 -Werror=all-warnings>)
  target_link_libraries(fathom_${name} PUBLIC fathom_options CUDA::cudart_static)
endfunction()
