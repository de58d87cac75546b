#include "engine/routing/formats/torch_archive.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/base/errors.h"

namespace moe {
namespace {

// Zip (APPNOTE 6.3): signatures, and sizes of the parts without names.
constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr size_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kMostComment = 65535;

uint32_t crc32(std::string_view text) {
  uint32_t crc = ~0u;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

/// Appends the lowest `bytes` bytes of a number, the lowest first.
void put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

/// Returns the number in `bytes` bytes at `at`. Throws UserError beyond the end.
uint64_t get(std::string_view text, size_t at, size_t bytes, const std::string& where) {
  if (at > text.size() || text.size() - at < bytes) {
    throw user_error("{}: the archive is damaged: it ends too early", where);
  }
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(text[at + i])) << (8 * i);
  }
  return value;
}

/// A zip archive in the making.
class Zip {
 public:
  void add(const std::string& name, std::string_view content) {
    std::string sizes;  // version, flags, method, time, date; crc, sizes, lengths of the names
    for (const int value : {20, 0, 0, 0, 33}) put(sizes, static_cast<uint64_t>(value), 2);
    put(sizes, crc32(content), 4);
    put(sizes, content.size(), 4);
    put(sizes, content.size(), 4);
    put(sizes, name.size(), 2);
    put(sizes, 0, 2);
    put(central_, kCentral, 4);
    put(central_, 20, 2);  // made by
    central_ += sizes;
    central_.append(10, '\0');  // comment, disk, attributes
    put(central_, out_.size(), 4);
    central_ += name;
    ++entries_;
    put(out_, kLocal, 4);
    out_ += sizes;
    out_ += name;
    out_ += content;
  }
  std::string finish() && {
    const size_t at = out_.size();
    out_ += central_;
    put(out_, kEnd, 4);
    put(out_, 0, 4);
    put(out_, entries_, 2);
    put(out_, entries_, 2);
    put(out_, central_.size(), 4);
    put(out_, at, 4);
    put(out_, 0, 2);
    return std::move(out_);
  }

 private:
  std::string out_, central_;
  uint64_t entries_ = 0;
};

void put_text(std::string& pickle, std::string_view text) {
  pickle += 'X';
  put(pickle, text.size(), 4);
  pickle += text;
}

void put_int(std::string& pickle, int64_t value) {
  pickle += 'J';
  put(pickle, static_cast<uint64_t>(value), 4);
}

void put_tuple(std::string& pickle, const std::vector<int64_t>& values) {
  pickle += '(';
  for (const int64_t value : values) put_int(pickle, value);
  pickle += 't';
}

/// The pickle, of protocol 2, of torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False,
/// OrderedDict()), where the storage is the persistent id ("storage", class, "0", "cpu", elements).
std::string pickle_of(TorchType type, const std::vector<int64_t>& shape) {
  constexpr std::array<const char*, 3> kStorages = {"IntStorage", "LongStorage", "FloatStorage"};
  std::vector<int64_t> strides(shape.size(), 1);
  int64_t elements = 1;
  for (size_t i = shape.size(); i-- > 0; elements *= shape[i]) strides[i] = elements;
  std::string pickle =
      "\x80\x02"
      "ctorch._utils\n_rebuild_tensor_v2\n((";
  put_text(pickle, "storage");
  pickle += fmt::format("ctorch\n{}\n", kStorages[static_cast<size_t>(type)]);
  put_text(pickle, "0");
  put_text(pickle, "cpu");
  put_int(pickle, elements);
  pickle += "tQ";
  put_int(pickle, 0);
  put_tuple(pickle, shape);
  put_tuple(pickle, strides);
  pickle +=
      "\x89"
      "ccollections\nOrderedDict\n)RtR.";
  return pickle;
}

bool ends_with(std::string_view name, std::string_view end) {
  return name.size() >= end.size() && name.substr(name.size() - end.size()) == end;
}

/// Returns the content of the entry whose name ends with `/` and `wanted`, or null.
std::optional<std::string_view> entry(std::string_view zip, std::string_view wanted,
                                      const std::string& where) {
  size_t end = std::string_view::npos;
  for (size_t back = kEndSize; back <= zip.size() && back <= kEndSize + kMostComment; ++back) {
    if (get(zip, zip.size() - back, 4, where) != kEnd) continue;
    end = zip.size() - back;
    break;
  }
  if (end == std::string_view::npos) {
    throw user_error("{}: this is no zip archive, as torch.save writes it", where);
  }
  const uint64_t entries = get(zip, end + 10, 2, where);
  size_t at = get(zip, end + 16, 4, where);
  for (uint64_t i = 0; i < entries; ++i) {
    if (get(zip, at, 4, where) != kCentral) {
      throw user_error("{}: the archive is damaged: entry {} has no header", where, i);
    }
    const uint64_t method = get(zip, at + 10, 2, where), crc = get(zip, at + 16, 4, where);
    const uint64_t size = get(zip, at + 24, 4, where), name_size = get(zip, at + 28, 2, where);
    const uint64_t skip = get(zip, at + 30, 2, where) + get(zip, at + 32, 2, where);
    const uint64_t local = get(zip, at + 42, 4, where);
    const std::string_view name = zip.substr(std::min(at + kCentralSize, zip.size()), name_size);
    at += kCentralSize + name_size + skip;
    if (!ends_with(name, fmt::format("/{}", wanted))) continue;
    const size_t first =
        local + kLocalSize + get(zip, local + 26, 2, where) + get(zip, local + 28, 2, where);
    if (method != 0 || first > zip.size() || zip.size() - first < size ||
        crc32(zip.substr(first, size)) != crc) {
      throw user_error("{}: the archive is damaged or compressed: entry {}", where, name);
    }
    return zip.substr(first, size);
  }
  return std::nullopt;
}

}  // namespace

std::string torch_archive(std::string_view name, TorchType type, const std::vector<int64_t>& shape,
                          std::string_view bytes) {
  Zip zip;
  zip.add(fmt::format("{}/data.pkl", name), pickle_of(type, shape));
  zip.add(fmt::format("{}/byteorder", name), "little");
  zip.add(fmt::format("{}/data/0", name), bytes);
  zip.add(fmt::format("{}/version", name), "3\n");
  return std::move(zip).finish();
}

std::string_view torch_elements(std::string_view archive, const std::string& where) {
  const auto order = entry(archive, "byteorder", where);
  const auto elements = entry(archive, "data/0", where);
  if (!elements || (order && *order != "little")) {
    throw user_error("{}: the archive has no little-endian tensor", where);
  }
  return *elements;
}

}  // namespace moe
