// One tensor as torch.save writes it: a zip archive without compression, with a pickle of the
// tensor's shape and its elements as bytes. Only what traces need: dense tensors of whole numbers
// and floats, little-endian, whose shape and type are also known from elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

enum class TorchType : uint8_t { kInt32, kInt64, kFloat32 };

/// Returns the archive of a contiguous tensor; bytes: its elements. torch.load reads it, with
/// weights_only too. name: of the folder in the archive. Requires: dimensions below 2^31.
std::string torch_archive(std::string_view name, TorchType type, const std::vector<int64_t>& shape,
                          std::string_view bytes);
/// Returns the elements of the tensor as bytes; they lie in `archive`. Throws UserError, which
/// begins with `where`, when it is no zip archive of one uncompressed little-endian tensor, or
/// is damaged.
std::string_view torch_elements(std::string_view archive, const std::string& where);

}  // namespace moe
