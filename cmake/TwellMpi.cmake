# MPI, by which `twell train` runs on several processes, where it is installed.
#
# TWELL_MPI: ON fails without it, OFF leaves it out. Unset, every configuration looks for it.
set(MPI_CXX_SKIP_MPICXX ON)  # its C++ classes of old; the C interface is what is used
if(NOT DEFINED TWELL_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
  set(TWELL_MPI ${MPI_CXX_FOUND})
elseif(TWELL_MPI)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
