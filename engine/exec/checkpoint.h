// Checkpoints: all parameters and optimizer states in one file, as full tensors, so that a run may
// continue with another number of ranks. The file is written under a temporary name next to its
// final one, synced and renamed, so the file under the final name is always complete. A file of
// another model is refused and left unchanged; a damaged file is renamed to "<path>.corrupt", so
// that nothing reads it again. A file is also damaged when its checksum is right but no run writes
// such content.
//
//   "MOEBENCH" | version u32 | bytes per float u32 | next step i64 | text length u64 | text |
//   every tensor's floats in the order of the text | FNV-1a 64 of all bytes before it
//
// The text has a line "placement BLOCK CODES" for each placed layer and "tensor NAME ELEMENTS" for
// each tensor; files of version 1 also have lines "key=value", which are ignored. The placements
// and tensors follow in the order of these lines and fill the file up to the checksum. The next
// step is 0 to 10^10. Numbers are little-endian.
#pragma once

#include <string>

#include "engine/exec/parameters.h"

namespace moe {

/// Writes the buffers of all ranks to `path`. The buffers are only read; no rank may run during the
/// call. Throws RunError, which names the path and the system's reason.
void write_checkpoint(const std::string& path, const PersistentTensors& all,
                      const AllBuffers& ranks, Bytes element_bytes, int64_t next_step);

/// Fills every rank's parameters and states, and returns the step to continue with. Throws
/// UserError, which names the path and what is wrong: the file is missing, corrupt or damaged (then
/// it is renamed, as above), or has another version, precision or model. In these cases the ranks'
/// buffers are unchanged.
int64_t read_checkpoint(const std::string& path, const PersistentTensors& all,
                        const AllBuffers& ranks, Bytes element_bytes);

/// Fills every rank's parameters but not its states, from a checkpoint of the same model; states
/// and placements in the file are ignored. Throws as read_checkpoint does, and UserError for a
/// parameter that the file or the model lacks.
void read_parameters(const std::string& path, const PersistentTensors& all, const AllBuffers& ranks,
                     Bytes element_bytes);

}  // namespace moe
