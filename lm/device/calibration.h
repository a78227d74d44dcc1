// What `twell calibrate` measured of feed-forward layers on this machine, kept in a file.
#pragma once

#include <filesystem>
#include <string>

#include "twell/cost.h"

namespace twell::lm {

// "AMD EPYC, avx512, 2 threads": what a measurement holds for.
std::string machine_key(CpuTier tier, int threads);

// This machine's, if its file has it, else the built-in one. Throws twell::Error (environment)
// naming the file where it is damaged.
CostModel load_cost_model(CpuTier tier, int threads);
// Throws where save_cost_model() would: the file cannot be written, or holds something else.
void check_calibration_file();
// Adds to the file, or replaces, the figures of `model.measured_on`; written atomically.
void save_cost_model(const CostModel& model);

// $TWELL_CALIBRATION, else twell/calibration.json in the user's cache folder ($XDG_CACHE_HOME or
// ~/.cache). Empty where there is none, or the variable is empty: nothing is loaded.
std::filesystem::path calibration_file();
// False where TWELL_CALIBRATION is set to nothing: built-in figures are then taken as they are.
bool built_in_figures_are_scaled();

}  // namespace twell::lm
