// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/base/files.h"

namespace moe {

/// The content of a file, mapped as long as this object lives. The file must not become shorter in
/// that time.
class MappedFile {
 public:
  /// Throws UserError with the path and the reason for what is not a regular file or cannot be
  /// read. kRefuse is about the last part of the path.
  MappedFile(const std::string& path, Links links);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::string_view content() const { return content_; }

 private:
  std::string_view content_;
};

}  // namespace moe
