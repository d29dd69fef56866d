# Ranks as processes: `cistron/dist/mpi/` with MPI, `no_mpi/` (a stub that says how to get it) without.
if(MPI_CXX_FOUND)
  file(GLOB mpi_sources CONFIGURE_DEPENDS cistron/dist/mpi/*.cpp)
  target_link_libraries(cistron PRIVATE MPI::MPI_CXX)
else()
  file(GLOB mpi_sources CONFIGURE_DEPENDS cistron/dist/no_mpi/*.cpp)
endif()
target_sources(cistron PRIVATE ${mpi_sources})
