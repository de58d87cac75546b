// Checkpoints: all parameters and optimizer states in one file, as full tensors, so that a run may
// continue with another number of ranks. The file is written under a temporary name next to its
// final one, synced and renamed, so the file under the final name is always complete. A file of
// another run is refused and left unchanged; a damaged file is renamed to "<path>.corrupt", so that
// nothing reads it again.
//
// The format is that of safetensors.h. The metadata begins with "format" and has "next_step" and
// the facts of the run. The tensors are the parameters, the states, "placement.BLOCK" (I32) for
// each placed layer, and "_checksum" (U8), the FNV-1a 64 of all bytes before it.
#pragma once

#include <string>

#include "engine/exec/parameters.h"
#include "engine/exec/safetensors.h"

namespace moe {

/// Writes the buffers of all ranks to `path`. The buffers are only read; no rank may run during the
/// call. facts: what a run that goes on must have in common with this one beside its tensors, such
/// as its gate. Throws RunError, which names the path and the system's reason.
void write_checkpoint(const std::string& path, const PersistentTensors& all,
                      const AllBuffers& ranks, Bytes element_bytes, int64_t next_step,
                      const Metadata& facts);

/// Fills every rank's parameters and states, and returns the step to continue with. Throws
/// UserError, which names the path and what is wrong: the file is missing, damaged (then it is
/// renamed, as above) or no checkpoint, or has another precision, model or fact. In these cases the
/// ranks' buffers are unchanged.
int64_t read_checkpoint(const std::string& path, const PersistentTensors& all,
                        const AllBuffers& ranks, Bytes element_bytes, const Metadata& facts);

/// Fills every rank's parameters but not its states, from a checkpoint of the same model; states,
/// placements and facts in the file are ignored. Throws as read_checkpoint does.
void read_parameters(const std::string& path, const PersistentTensors& all, const AllBuffers& ranks,
                     Bytes element_bytes);

}  // namespace moe
