#include "train/processes.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "twell/status.h"

#ifdef TWELL_MPI
#include <mpi.h>
#endif

namespace twell::lm {
namespace {

// Of the processes that a launcher started, by its environment variable; 1 where it is absent.
std::int64_t count_in(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? 1 : std::max(1L, std::strtol(value, nullptr, 10));
}

// Of Open MPI, of MPICH and Intel's MPI, and of Slurm's srun, which starts programs of any MPI.
std::int64_t started_by_mpi() {
  return std::max(
      {count_in("OMPI_COMM_WORLD_SIZE"), count_in("PMI_SIZE"), count_in("SLURM_STEP_NUM_TASKS")});
}

#ifdef TWELL_MPI

bool g_failed = false, g_left = false;

void leave() {
  if (std::exchange(g_left, true)) return;  // MPI_Abort() may exit
  // Finalizing waits for the others, which wait for what this one will never send.
  if (g_failed) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  MPI_Finalize();
}

// MPI counts in int.
constexpr std::size_t kPiece = std::size_t{1} << 28;

template <class T>
void reduce(std::span<T> values, MPI_Datatype type, MPI_Op operation) {
  for (; !values.empty(); values = values.subspan(std::min(kPiece, values.size()))) {
    const auto count = static_cast<int>(std::min(kPiece, values.size()));
    MPI_Allreduce(MPI_IN_PLACE, values.data(), count, type, operation, MPI_COMM_WORLD);
  }
}

#endif

}  // namespace

#ifdef TWELL_MPI

Processes Processes::started() {
  if (started_by_mpi() > 1) {
    int provided = 0, initialized = 0, rank = 0, count = 1;
    MPI_Initialized(&initialized);
    if (initialized == 0) {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
      std::atexit(leave);
      std::at_quick_exit(leave);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    // One each: of another MPI than the one that was linked.
    if (count > 1) return {rank, count};
    throw Error(ErrorKind::unsupported, "mpirun or srun",
                "started several processes that do not find each other: it is of another MPI than "
                "the one this program was built with (srun: see --mpi)");
  }
  if (count_in("WORLD_SIZE") > 1) {
    throw Error(ErrorKind::unsupported, "WORLD_SIZE",
                "is set, as by torchrun, but processes find each other by MPI here: start them "
                "with mpirun -n " +
                    std::to_string(count_in("WORLD_SIZE")) + ", or unset it");
  }
  return {};
}

void Processes::sum(std::span<float> values) const {
  if (!alone()) reduce(values, MPI_FLOAT, MPI_SUM);
}
void Processes::sum(std::span<double> values) const {
  if (!alone()) reduce(values, MPI_DOUBLE, MPI_SUM);
}
void Processes::sum(std::span<std::int64_t> values) const {
  if (!alone()) reduce(values, MPI_INT64_T, MPI_SUM);
}
void Processes::maximum(std::span<std::int64_t> values) const {
  if (!alone()) reduce(values, MPI_INT64_T, MPI_MAX);
}

void Processes::broadcast(std::span<std::byte> bytes) const {
  if (alone()) return;
  MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
}

void Processes::wait_for_all() const {
  if (!alone()) MPI_Barrier(MPI_COMM_WORLD);
}

void Processes::failed() const {
  if (alone()) return;
  g_failed = true;
  if (!first()) std::this_thread::sleep_for(std::chrono::seconds(2));
}

#else

Processes Processes::started() {
  const std::int64_t count = std::max(started_by_mpi(), count_in("WORLD_SIZE"));
  if (count == 1) return {};
  throw Error(ErrorKind::unsupported, "training",
              "the environment asks for " + std::to_string(count) +
                  " processes, but this build has no MPI: install libopenmpi-dev and openmpi-bin, "
                  "and build again");
}

// Alone always.
void Processes::sum(std::span<float> /*values*/) const {}
void Processes::sum(std::span<double> /*values*/) const {}
void Processes::sum(std::span<std::int64_t> /*values*/) const {}
void Processes::maximum(std::span<std::int64_t> /*values*/) const {}
void Processes::broadcast(std::span<std::byte> /*bytes*/) const {}
void Processes::wait_for_all() const {}
void Processes::failed() const {}

#endif

}  // namespace twell::lm
