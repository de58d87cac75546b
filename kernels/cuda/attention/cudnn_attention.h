// Which attention is computed by cuDNN. cudnn_attention.cpp also defines the functions of
// attention_library.h, which compute it.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

enum class Direction : bool { kForward, kBackward };

/// Returns cudnnGetVersion(), opening cuDNN at the first call; 0 if it is not installed.
size_t cudnn_version();
/// Returns whether this version of cuDNN is used for the shape: cuDNN must support it, and no fault
/// of the version that affects it is known.
bool cudnn_takes(size_t version, AttentionShape shape);
/// Returns whether cuDNN has kernels for the shape that give the same bits on every run. The device
/// need not be present: `properties` is its CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, `capability`
/// its compute capability (90 is 9.0). Requires: cudnn_version() is not 0.
bool cudnn_offers(AttentionShape shape, Direction direction, const std::string& properties,
                  int32_t capability);

}  // namespace moe::kernels::cuda
