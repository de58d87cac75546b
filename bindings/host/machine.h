// Describes this program and this machine, for results and for `moebench doctor`. Measuring the
// machine is in engine/profile (machine_reading.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/profile/machine_reading.h"

namespace moe::lua {

const char* program_version();
/// Returns the folder that contains moe/init.lua: ../share/moebench or scripts, seen from the
/// program's folder, else scripts of the source tree.
std::string find_scripts();

/// Returns {cpu, cores, kernel_set, git}. git is the revision of the working tree that contains
/// scripts_dir, read from its .git folder, or "".
nlohmann::json machine_json(const std::string& scripts_dir);

/// Returns the first part of the text of `moebench doctor`: what this machine can run, and what is
/// missing.
std::string doctor_text(const std::string& scripts_dir, const std::string& cache);
/// Returns the second part: what was read, at most eight cores of it, and the verdict.
std::string reading_text(const MachineReading& reading);

}  // namespace moe::lua
