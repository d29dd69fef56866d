# Libraries of others: the interface target `cistron_dependencies`. docs/dependencies.md says why each is here.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(dnnl REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)  # only to tell oneDNN's own runtime to stay on the calling thread
find_package(PkgConfig REQUIRED)
pkg_check_modules(htslib REQUIRED IMPORTED_TARGET htslib)

# Optional: without it ranks are threads. Turn it off with -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI COMPONENTS CXX)
if(NOT MPI_CXX_FOUND)
  message(STATUS "MPI: not found, so cistron will not run under mpirun (Debian: libopenmpi-dev openmpi-bin)")
endif()

add_library(cistron_dependencies INTERFACE)
target_link_libraries(cistron_dependencies INTERFACE Threads::Threads fmt::fmt DNNL::dnnl nlohmann_json::nlohmann_json
                                                     OpenMP::OpenMP_CXX PkgConfig::htslib)
