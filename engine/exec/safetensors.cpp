#include "engine/exec/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/files.h"
#include "engine/base/names.h"

namespace moe {
namespace {

using nlohmann::json;

constexpr size_t kMostHeader = size_t{100} << 20;  // the limit of the format's own reader

double half_to_double(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

/// The number with 4 bits of exponent and 3 of mantissa, without infinities (OCP OFP8).
double e4m3_to_double(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (exponent == 15 && mantissa == 7) return NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(8 + mantissa, exponent - 10);
}

[[noreturn]] void wrong(const std::string& path, const std::string& why) {
  throw user_error("{}: it is not a file of safetensors: {}", path, why);
}

/// Returns a number of a header. Throws UserError for one that is not whole or is below 0.
size_t whole(const std::string& path, const std::string& name, const json& number) {
  if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t{1} << 62) {
    wrong(path, fmt::format("shape and data_offsets of its tensor '{}' must be whole numbers of at "
                            "least 0",
                            name));
  }
  return number.get<size_t>();
}

/// The bytes of a tensor after the header, from `begin` to before `end`.
struct Range {
  size_t begin, end;
  std::string name;
  auto operator<=>(const Range&) const = default;
};

/// Throws UserError unless the tensors fill the `size` bytes without a gap or an overlap.
void check_ranges(const std::string& path, std::vector<Range> ranges, size_t size) {
  std::sort(ranges.begin(), ranges.end());
  Range before{0, 0, ""};
  for (const Range& one : ranges) {
    if (one.begin < before.end) {
      wrong(path, fmt::format("its tensors '{}' and '{}' have the bytes from {} to {} in common",
                              before.name, one.name, one.begin, std::min(one.end, before.end)));
    }
    if (one.begin > before.end) {
      wrong(path, fmt::format("the bytes from {} to {} before its tensor '{}' belong to no tensor",
                              before.end, one.begin, one.name));
    }
    before = one;
  }
  if (before.end == size) return;
  wrong(path, fmt::format("its tensors have {} bytes in all, but the file has {} after its header",
                          before.end, size));
}

/// Returns the header of a file, a JSON object in which no name stands twice.
json header_of(const std::string& path, std::string_view text) {
  check_json_size(text, path);
  std::vector<std::set<std::string>> names;  // of the objects that have begun
  std::optional<std::string> twice;
  const auto look = [&](int, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    const bool key = event == json::parse_event_t::key;
    if (key && !names.back().insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  json header = json::parse(text, look, false);
  if (!header.is_object()) wrong(path, "its header is not a JSON object");
  if (twice) wrong(path, fmt::format("'{}' stands twice in one object of its header", *twice));
  return header;
}

/// Returns the tensor that the header of a file lists; nothing for one of a type that no parameter
/// has. size: the number of bytes after the header, of which `range` gets those of the tensor.
std::optional<Safetensors::Entry> entry_of(const std::string& path, const std::string& name,
                                           const json& tensor, size_t size, Range& range) {
  Safetensors::Entry entry;
  size_t begin = 0, end = 0;
  std::string type;
  try {
    type = tensor.at("dtype").get<std::string>();
    for (const json& n : tensor.at("shape").get_ref<const json::array_t&>()) {
      entry.shape.push_back(static_cast<int64_t>(whole(path, name, n)));
    }
    begin = whole(path, name, tensor.at("data_offsets").at(0));
    end = whole(path, name, tensor.at("data_offsets").at(1));
  } catch (const json::exception&) {
    wrong(path, fmt::format("its tensor '{}' has no dtype, shape and data_offsets", name));
  }
  const auto outside = [&] {
    wrong(path, fmt::format("its tensor '{}' {} of type {} lies in bytes {} to {} of {}", name,
                            shape_text(entry.shape), type, begin, end, size));
  };
  if (begin > end || end > size) outside();
  range = {begin, end, name};
  constexpr auto kTypes = names_of(FileType{});
  const auto known = std::find(kTypes.begin(), kTypes.end(), type);
  if (known == kTypes.end()) return std::nullopt;
  entry.type = static_cast<FileType>(known - kTypes.begin());
  double elements = 1;
  for (const int64_t n : entry.shape) elements *= static_cast<double>(n);
  const double bytes = elements * static_cast<double>(type_bytes(entry.type));
  if (bytes != static_cast<double>(end - begin)) outside();
  entry.begin = begin;
  entry.bytes = end - begin;
  return entry;
}

/// The tensor that this thread read last.
struct LastRead {
  std::shared_ptr<const Safetensors::File> file;
  size_t begin = 0;
  std::shared_ptr<const std::string> content;
};
thread_local LastRead last;

}  // namespace

size_t type_bytes(FileType type) {
  switch (type) {
    case FileType::kF64:
      return 8;
    case FileType::kF32:
    case FileType::kI32:
      return 4;
    case FileType::kF8E4M3:
    case FileType::kF8E8M0:
    case FileType::kU8:
      return 1;
    default:
      return 2;
  }
}

bool is_read(FileType type) {
  return type != FileType::kI32 && type != FileType::kU8 && type != FileType::kF8E8M0;
}

const std::string& Safetensors::Entry::content() const {
  if (last.content != nullptr && last.file == file && last.begin == begin) return *last.content;
  forget_read();
  const std::lock_guard lock(file->reading);
  std::weak_ptr<const std::string>& read = file->read[begin];
  std::shared_ptr<const std::string> content = read.lock();
  if (content == nullptr) {
    std::string all(bytes, '\0');
    file->file.read_at(begin, all.data(), bytes);
    content = std::make_shared<const std::string>(std::move(all));
    read = content;
  }
  last = {file, begin, std::move(content)};
  return *last.content;
}

void Safetensors::forget_read() {
  last = {};
}

double Safetensors::Entry::at(int64_t i) const {
  const char* const p = content().data() + static_cast<size_t>(i) * type_bytes(type);
  const auto as = [p]<class T>(T value) {
    std::memcpy(&value, p, sizeof value);
    return value;
  };
  switch (type) {
    case FileType::kF64:
      return as(double{});
    case FileType::kF32:
      return static_cast<double>(as(float{}));
    case FileType::kF16:
      return half_to_double(as(uint16_t{}));
    case FileType::kBF16:
      return std::bit_cast<float>(static_cast<uint32_t>(as(uint16_t{})) << 16);
    case FileType::kI32:
      return as(int32_t{});
    case FileType::kF8E4M3:
      return e4m3_to_double(as(uint8_t{}));
    case FileType::kF8E8M0:
      return *p == '\xff' ? NAN : std::ldexp(1.0, as(uint8_t{}) - 127);
    case FileType::kU8:
      return as(uint8_t{});
  }
  return 0;
}

Safetensors::Safetensors(const std::vector<std::string>& paths) {
  MOE_CHECK(!paths.empty(), "Safetensors: there are {} paths, but must be at least 1",
            paths.size());
  path_ = paths[0];
  for (const std::string& path : paths) open(path);
}

void Safetensors::open(const std::string& path) {
  const auto file = std::make_shared<File>(path);
  uint64_t length = 0;
  const size_t size = file->file.size();
  if (size < sizeof length) wrong(path, "it is shorter than 8 bytes");
  file->file.read_at(0, &length, sizeof length);
  if (length > kMostHeader || length > size - sizeof length) {
    wrong(path, fmt::format("its header has {} bytes, the file {}", length, size));
  }
  std::string text(length, '\0');
  file->file.read_at(sizeof length, text.data(), length);
  const size_t begin = sizeof length + length;
  std::vector<Range> ranges;
  const json header = header_of(path, text);
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, text] : tensor.items()) metadata_[key] = text.is_string() ? text : "";
      continue;
    }
    std::optional<Entry> entry = entry_of(path, name, tensor, size - begin, ranges.emplace_back());
    if (!entry || !is_read(entry->type)) unread_[name] = tensor["dtype"];
    if (!entry) continue;
    entry->begin += begin;
    entry->file = file;
    if (!entries_.emplace(name, *entry).second) {
      throw user_error("{}: its tensor '{}' is in another file of the checkpoint too", path, name);
    }
  }
  check_ranges(path, std::move(ranges), size - begin);
}

const Safetensors::Entry* Safetensors::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

std::string Safetensors::form_of(const std::string& name) const {
  const auto other = unread_.find(name);
  if (other != unread_.end()) {
    return fmt::format("its tensor '{}' is of type {}", name, other->second);
  }
  return fmt::format("it has no tensor '{}'", name);
}

std::string safetensors_header(const Metadata& metadata, const std::vector<FileTensor>& tensors) {
  const auto text_of = [](const json& value) {
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
  };
  std::string text = R"({"__metadata__":{)";
  const char* before = "";
  for (const auto& [name, value] : metadata) {
    text += std::exchange(before, ",") + text_of(name) + ":" + text_of(value);
  }
  text += "}";
  size_t end = 0;
  for (const FileTensor& t : tensors) {
    const size_t begin = std::exchange(end, end + t.bytes);
    text += "," + text_of(t.name) + ":" +
            text_of({{"dtype", t.type}, {"shape", t.shape}, {"data_offsets", {begin, end}}});
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

std::vector<std::string> files_of_index(std::string_view text, const std::string& path) {
  check_json_size(text, path);
  const json index = json::parse(text, nullptr, false);
  std::set<std::string> names;
  if (index.is_object() && index.contains("weight_map") && index["weight_map"].is_object()) {
    for (const auto& [tensor, file] : index["weight_map"].items()) {
      if (file.is_string()) names.insert(file.get<std::string>());
    }
  }
  if (names.empty()) {
    throw user_error(
        "{}: it is not the index of a checkpoint, which has a weight_map from tensors to files",
        path);
  }
  return {names.begin(), names.end()};
}

}  // namespace moe
