#include "engine/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/errors.h"

namespace moe {

MappedFile::MappedFile(const std::string& path, Links links) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  const Descriptor file(::open(path.c_str(), links == Links::kRefuse ? flags | O_NOFOLLOW : flags));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) {
    throw user_error("cannot read {}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) throw user_error("cannot read {}: it is not a regular file", path);
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;  // mmap takes no empty range
  void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) throw user_error("cannot read {}: {}", path, std::strerror(errno));
  content_ = {static_cast<const char*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : content_(std::exchange(other.content_, {})) {}

MappedFile::~MappedFile() {
  if (!content_.empty()) munmap(const_cast<char*>(content_.data()), content_.size());
}

}  // namespace moe
