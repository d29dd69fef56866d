# The CUDA backend. cistron/cuda/**/*.cpp outside runtime/ are host code without CUDA (descriptors, tile choice, schedulers), always
# built; runtime/ and *.cu need nvcc. Files named sm90_* use instructions of Hopper alone; the others run from sm_80 on.
# Without nvcc cistron/no_cuda/*.cpp stand in for what ops headers declare.
if(NOT CISTRON_CUDA)
  file(GLOB no_cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cistron/no_cuda/*.cpp)
  target_sources(cistron PRIVATE ${no_cuda_sources})
  return()
endif()
enable_language(CUDA)
find_package(CUDAToolkit 12.4 REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)  # named by file, below
set_target_properties(cistron PROPERTIES CUDA_ARCHITECTURES OFF)
if(ccache)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ccache})  # of the targets to come; the library is there already
  set_target_properties(cistron PROPERTIES CUDA_COMPILER_LAUNCHER ${ccache})
endif()

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cistron/cuda/*.cu ${CMAKE_SOURCE_DIR}/cistron/cuda/runtime/*.cpp)
target_sources(cistron PRIVATE ${cuda_sources})
# Machine code for sm_80 (which 8.x runs) and sm_90, and PTX for whatever comes later; Hopper's own instructions need the architecture
# by its full name.
function(cistron_cuda_architectures)
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME)
    if(name MATCHES "^sm90_.*\\.cu$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-gencode=arch=compute_90a,code=sm_90a")
    elseif(name MATCHES "^mxfp8_.*\\.cu$")  # E4M3 conversions are instructions from sm_89 on
      set_source_files_properties(
        ${source} PROPERTIES COMPILE_OPTIONS
        "-gencode=arch=compute_80,code=sm_80;-gencode=arch=compute_89,code=sm_89;-gencode=arch=compute_90,code=[sm_90,compute_90]")
    elseif(name MATCHES "\\.cu$")
      set_source_files_properties(
        ${source} PROPERTIES COMPILE_OPTIONS "-gencode=arch=compute_80,code=sm_80;-gencode=arch=compute_90,code=[sm_90,compute_90]")
    endif()
  endforeach()
endfunction()
cistron_cuda_architectures(${cuda_sources})
# fmt takes nvcc for a compiler without constexpr.
set(cistron_cuda_flags --expt-relaxed-constexpr -Xptxas=-warn-spills -DFMT_USE_CONSTEXPR=1 -diag-suppress=186)
target_compile_options(cistron PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${cistron_cuda_flags}>)
target_link_libraries(cistron PUBLIC CUDA::cudart_static)
