// Values as bytes for another process that runs the same program on the same kind of machine.
// Packer and Unpacker must handle the values in the same order. For a struct with a table of fields
// (field.h), the table defines which members are sent. It is not a file format.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/field.h"

namespace moe {

class Packer {
 public:
  template <class T>
  void put(const T& value) {
    if constexpr (HasFields<T>) {
      for_each_carried(value, [this](const auto& member) { put(member); });
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      put_bytes(&value, sizeof value);
    }
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(values.size());
    if constexpr (std::is_trivially_copyable_v<T>) {
      put_bytes(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) put(value);
    }
  }
  void put(const std::string& text) {
    put(text.size());
    put_bytes(text.data(), text.size());
  }
  void put_bytes(const void* data, size_t bytes) {
    if (bytes > 0) bytes_.append(static_cast<const char*>(data), bytes);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads the values of a Packer in the order of its calls. `bytes` must outlive the Unpacker.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : left_(bytes) {}

  template <class T>
  void get(T& value) {
    if constexpr (HasFields<T>) {
      for_each_carried(value, [this](auto& member) { get(member); });
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      std::memcpy(&value, next(sizeof value).data(), sizeof value);
    }
  }
  template <class T>
  void get(std::vector<T>& values) {
    values.resize(next_size());
    if constexpr (std::is_trivially_copyable_v<T>) {
      const std::string_view bytes = next(values.size() * sizeof(T));
      if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      for (T& value : values) get(value);
    }
  }
  void get(std::string& text) { text = next(next_size()); }
  std::string_view next(size_t bytes) {
    MOE_CHECK(bytes <= left_.size(),
              "Unpacker: the next value has {} bytes, but the message has only {} left", bytes,
              left_.size());
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

 private:
  size_t next_size() {
    size_t size = 0;
    get(size);
    return size;
  }

  std::string_view left_;
};

}  // namespace moe
