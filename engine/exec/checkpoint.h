// Checkpoints: all parameters and optimiser states in one file, as full tensors, so that a run may
// go on with another number of ranks. The file is written beside its place, synced and renamed:
// what stands under the name is always complete. A file of another model is refused and left as it
// is; a damaged one is set aside as "<path>.corrupt", so that nothing picks it up again. Damaged is
// what no run writes, its checksum right or not.
//
//   "MOEBENCH" | version u32 | bytes a float u32 | next step i64 | text length u64 | text |
//   every tensor's floats in the order of the text | FNV-1a 64 of all before
//
// The text has a line "key=value" for each model field, "placement BLOCK CODES" for each placed
// layer and "tensor NAME ELEMENTS" for each tensor, in their order; what they say makes up the file
// to its last byte. The next step is 0 to 10^10. Numbers are little-endian.
#pragma once

#include <string>

#include "engine/exec/parameters.h"

namespace moe {

/// Everything stays as it is in `ranks`; they must not run meanwhile. Throws RunError naming the
/// path and the system's reason.
void write_checkpoint(const std::string& path, const Plan& plan, const PersistentTensors& all,
                      const AllBuffers& ranks, Bytes element_bytes, int64_t next_step);

/// Fills every rank's parameters and states; returns the step to go on with. Throws UserError
/// naming the path and what is wrong: missing, corrupt or damaged (then set aside), another
/// version, precision or model. The ranks are untouched then.
int64_t read_checkpoint(const std::string& path, const Plan& plan, const PersistentTensors& all,
                        const AllBuffers& ranks, Bytes element_bytes);

/// Fills every rank's parameters alone, from a checkpoint of the same model with any states and
/// placements. Throws as read_checkpoint, and for a parameter that the file has not.
void read_parameters(const std::string& path, const Plan& plan, const PersistentTensors& all,
                     const AllBuffers& ranks, Bytes element_bytes);

}  // namespace moe
