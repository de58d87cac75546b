// Results of earlier runs in an output folder.
#pragma once

#include <string>

#include "bindings/host/files.h"

namespace moe::lua {

/// Moves the results of the last run in the output folder to the first of the folders 1, 2, 3, ..
/// in it that does not exist; returns its name, or "" without results. Results are results.json,
/// runs.jsonl, report.html and the files whose names begin with "trace-<number>-". A killed process
/// that wrote no results.json and finished no run has none, so that its files are written over.
std::string keep_earlier(const Files& files);

}  // namespace moe::lua
