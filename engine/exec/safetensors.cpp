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

/// Whether parameters are read from tensors of this type as they are, or with their scales.
bool is_read(FileType type) {
  return type != FileType::kI32 && type != FileType::kU8 && type != FileType::kF8E8M0;
}

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

/// The number of a code with 2 bits of exponent and 1 of mantissa (OCP MX).
double e2m1_to_double(int code) {
  constexpr std::array<double, 8> kValues = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const double value = kValues[static_cast<size_t>(code & 7)];
  return (code & 8) != 0 ? -value : value;
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 64);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

[[noreturn]] void wrong(const std::string& path, const std::string& why) {
  throw user_error("{}: it is not a file of safetensors: {}", path, why);
}

/// How a tensor of the model is laid out over tensors of the files.
struct Layout {
  int64_t experts = 1, rows = 1, cols = 1;
  int64_t parts = 1;  // tensors below each other
  bool each = false;  // whether each expert has tensors of its own
  bool transposed = false, interleaved = false;

  int64_t part_rows() const { return rows / parts; }
  /// Element of the model's tensor -> the file's tensor, and the element in it.
  std::pair<size_t, int64_t> place(int64_t element) const {
    const int64_t e = element / (rows * cols), r = element / cols % rows, c = element % cols;
    const int64_t part = r / part_rows();
    int64_t row = r % part_rows();
    if (interleaved) row = 2 * (row % (rows / 2)) + row / (rows / 2);
    const int64_t first = each ? 0 : e * part_rows() * cols;
    const int64_t in = first + (transposed ? c * part_rows() + row : row * cols + c);
    return {static_cast<size_t>((each ? e * parts : 0) + part), in};
  }
  /// Number of elements of a tensor in the file.
  int64_t size() const { return (each ? 1 : experts) * part_rows() * cols; }
};

Layout layout_of(const ParamInfo& info, const TensorSource& source) {
  Layout l;
  size_t axis = 0;
  if (info.held.moe) l.experts = info.shape[axis++];
  l.rows = axis < info.shape.size() ? info.shape[axis++] : 1;
  for (; axis < info.shape.size(); ++axis) l.cols *= info.shape[axis];
  l.parts = static_cast<int64_t>(source.names.size());
  l.each = source.names[0].find("%d") != std::string::npos;
  l.transposed = source.transposed;
  l.interleaved = source.interleaved;
  if (l.rows % l.parts != 0 || (l.interleaved && (l.rows % 2 != 0 || l.parts != 1))) {
    throw user_error("parameter {}: its {} rows do not divide into {} tensors", info.name, l.rows,
                     l.parts);
  }
  return l;
}

/// Returns the shape that a tensor in the file has.
Shape shape_in_file(const ParamInfo& info, const Layout& l) {
  Shape shape = info.shape;
  if (info.held.moe && l.each) shape.erase(shape.begin());
  const size_t rows = info.held.moe && !l.each ? 1 : 0;
  shape[rows] = l.part_rows();
  if (l.transposed && shape.size() > rows + 1) std::swap(shape[rows], shape[rows + 1]);
  return shape;
}

/// Returns the shape without an axis of length 1 before `axes` others: Ernie 4.5 has a bias [1,E].
Shape without_leading_one(Shape shape, size_t axes) {
  if (shape.size() == axes + 1 && shape[0] == 1) shape.erase(shape.begin());
  return shape;
}

/// Returns the names of the tensors in the file, those of expert 0 first.
std::vector<std::string> names_in_file(const TensorSource& source, const Layout& l) {
  std::vector<std::string> names;
  for (int64_t e = 0; e < (l.each ? l.experts : 1); ++e) {
    for (std::string name : source.names) {
      const size_t at = name.find("%d");
      if (at != std::string::npos) name.replace(at, 2, std::to_string(e));
      names.push_back(std::move(name));
    }
  }
  return names;
}

std::vector<ParamInfo> all_tensors(const Model& model) {
  std::vector<ParamInfo> all = model.parameters;
  all.insert(all.end(), model.states.begin(), model.states.end());
  return all;
}

const TensorSource& source_of(const TensorSources& sources, const ParamInfo& info) {
  const auto found = sources.find(info.name);
  if (found != sources.end() && !found->second.names.empty()) return found->second;
  throw user_error("parameter {}: the model does not say which tensor of a checkpoint it is",
                   info.name);
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

namespace {

bool has(const Safetensors& files, const std::string& name) {
  return files.find(name) != nullptr || files.find(name + "_blocks") != nullptr;
}

/// Returns the name that the files have for `name`, maybe below the prefix of a wrapped model;
/// `name` itself if they have none.
std::string name_in(const Safetensors& files, const std::string& name) {
  if (has(files, name)) return name;
  const bool inner = name.starts_with("model.");
  const std::string rest = inner ? name.substr(6) : name;
  std::vector<std::string> forms = {"language_model." + name, "thinker." + name};
  if (inner) forms.insert(forms.end(), {"model.language_model." + rest, rest});
  const auto found = std::find_if(forms.begin(), forms.end(),
                                  [&](const std::string& form) { return has(files, form); });
  return found == forms.end() ? name : *found;
}

/// Returns the source of which the files have the first tensor, or `source`.
const TensorSource& present(const Safetensors& files, const ParamInfo& info,
                            const TensorSource& source) {
  const auto is_there = [&](const TensorSource& one) {
    const std::vector<std::string> names = names_in_file(one, layout_of(info, one));
    return has(files, name_in(files, names[0]));
  };
  if (source.others.empty() || is_there(source)) return source;
  const auto other = std::find_if(source.others.begin(), source.others.end(), is_there);
  return other == source.others.end() ? source : *other;
}

/// A tensor of the files that is part of a parameter, with the scales of its numbers if it has any.
struct Part {
  const Safetensors::Entry* numbers = nullptr;
  const Safetensors::Entry* scales = nullptr;  // of kF8E4M3 or of MXFP4
  int64_t rows = 0, cols = 0;                  // of numbers with scales
  static constexpr int64_t kBlock = 128, kMxBlock = 32;

  double at(int64_t i) const {
    if (scales == nullptr) return numbers->at(i);
    if (numbers->type == FileType::kU8) {
      const double scale = std::ldexp(1.0, static_cast<int>(scales->at(i / kMxBlock)) - 127);
      const auto codes = static_cast<int>(numbers->at(i / 2));
      return scale * e2m1_to_double(i % 2 == 0 ? codes & 15 : codes >> 4);
    }
    const int64_t matrix = i / (rows * cols), row = i / cols % rows, col = i % cols;
    const int64_t across = (cols + kBlock - 1) / kBlock, down = (rows + kBlock - 1) / kBlock;
    return numbers->at(i) * scales->at((matrix * down + row / kBlock) * across + col / kBlock);
  }
};

/// Returns the tensor of this name and shape. Throws UserError, which names it, if the files have
/// another or none. `shape` is that of plain numbers; MXFP4 is never transposed, and `layout` is
/// changed so.
Part part_of(const Safetensors& files, const std::string& asked, const std::string& parameter,
             Shape shape, Layout& layout) {
  const std::string name = name_in(files, asked);
  const auto check = [&](const std::string& of, const Safetensors::Entry& entry,
                         const Shape& needed) {
    if (without_leading_one(entry.shape, needed.size()) == needed) return;
    throw user_error("{}: its tensor '{}' is {}, but the parameter {} needs {}", files.path(), of,
                     shape_text(entry.shape), parameter, shape_text(needed));
  };
  Part part{files.find(name), nullptr};
  const std::string blocks = name + "_blocks", scales = name + "_scales";
  if (part.numbers == nullptr && shape.size() >= 2 && files.find(blocks) != nullptr &&
      files.find(scales) != nullptr) {
    if (layout.transposed) std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
    layout.transposed = false;
    part = {files.find(blocks), files.find(scales), shape[shape.size() - 2], shape.back()};
    if (part.cols % Part::kMxBlock != 0) {
      throw user_error("{}: its tensor '{}' has blocks of {} numbers, but rows of {}", files.path(),
                       blocks, Part::kMxBlock, part.cols);
    }
    shape.back() = part.cols / Part::kMxBlock;
    for (const auto& [of, entry] : {std::pair(blocks, part.numbers), {scales, part.scales}}) {
      if (entry->type == FileType::kU8) continue;
      throw user_error("{}: its tensor '{}' of MXFP4 is of type {}, must be U8", files.path(), of,
                       name_of(entry->type));
    }
    check(scales, *part.scales, shape);
    shape.push_back(Part::kMxBlock / 2);
    check(blocks, *part.numbers, shape);
    return part;
  }
  if (part.numbers == nullptr || !is_read(part.numbers->type)) {
    throw user_error(
        "{}: {}, from which the parameter {} is made; read are F64, F32, F16, BF16, F8_E4M3 with "
        "scales and MXFP4: give a checkpoint that is converted to one of them",
        files.path(), files.form_of(name), parameter);
  }
  check(name, *part.numbers, shape);
  if (part.numbers->type != FileType::kF8E4M3) return part;
  const std::string inverse = name + "_scale_inv";
  part.scales = files.find(inverse);
  if (part.scales == nullptr || part.scales->type == FileType::kI32 || shape.size() < 2) {
    throw user_error(
        "{}: its tensor '{}' of type F8_E4M3 has no scales '{}', one per block of {} x {}; give a "
        "checkpoint that is converted to BF16",
        files.path(), name, inverse, Part::kBlock, Part::kBlock);
  }
  part.rows = shape[shape.size() - 2], part.cols = shape.back();
  for (size_t axis = shape.size() - 2; axis < shape.size(); ++axis) {
    shape[axis] = (shape[axis] + Part::kBlock - 1) / Part::kBlock;
  }
  check(inverse, *part.scales, shape);
  return part;
}

}  // namespace

struct LoadedParameters::Tensor {
  Layout layout;
  double plus = 0;
  std::vector<Part> parts;
};

LoadedParameters::LoadedParameters(std::shared_ptr<const Safetensors> files, const Model& model,
                                   const TensorSources& sources)
    : files_(std::move(files)) {
  std::set<const Safetensors::Entry*> used;
  for (const ParamInfo& info : all_tensors(model)) {
    const TensorSource& source = present(*files_, info, source_of(sources, info));
    Tensor tensor{layout_of(info, source), source.plus, {}};
    const Shape shape = shape_in_file(info, tensor.layout);
    for (const std::string& name : names_in_file(source, tensor.layout)) {
      tensor.parts.push_back(part_of(*files_, name, info.name, shape, tensor.layout));
      used.insert({tensor.parts.back().numbers, tensor.parts.back().scales});
    }
    tensors_.push_back(std::move(tensor));
  }
  for (const auto& [name, entry] : files_->entries()) {
    if (!used.contains(&entry)) unused_.push_back(name);
  }
}

LoadedParameters::~LoadedParameters() = default;

double LoadedParameters::value(uint64_t element, uint64_t tensor) const {
  const Tensor& t = tensors_[tensor];
  const auto [part, at] = t.layout.place(static_cast<int64_t>(element));
  return t.parts[part].at(at) + t.plus;
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

void write_safetensors(const std::string& path, const Model& model, const TensorSources& sources,
                       FileType type, const std::function<double(uint64_t, uint64_t)>& value) {
  const std::vector<ParamInfo> all = all_tensors(model);
  std::vector<Layout> layouts;
  std::vector<double> plus;
  std::vector<FileTensor> tensors;
  for (const ParamInfo& info : all) {
    const TensorSource& source = source_of(sources, info);
    layouts.push_back(layout_of(info, source));
    plus.push_back(source.plus);
    const size_t each = static_cast<size_t>(layouts.back().size()) * type_bytes(type);
    for (std::string& name : names_in_file(source, layouts.back())) {
      tensors.push_back(
          {std::move(name), name_of(type), shape_in_file(info, layouts.back()), each});
    }
  }
  const std::string header = safetensors_header({{"format", "pt"}}, tensors);  // as transformers
  AtomicFile file(path);
  file.write(header.data(), header.size());
  for (size_t t = 0; t < all.size(); ++t) {
    const auto each = static_cast<size_t>(layouts[t].size()) * type_bytes(type);
    std::vector<std::byte> content(static_cast<size_t>(num_elements(all[t].shape)) *
                                   type_bytes(type));
    for (int64_t i = 0; i < num_elements(all[t].shape); ++i) {
      const auto [part, at] = layouts[t].place(i);
      std::byte* const to =
          content.data() + part * each + static_cast<size_t>(at) * type_bytes(type);
      const double x = value(static_cast<uint64_t>(i), t) - plus[t];
      const auto put = [to](auto bits) { std::memcpy(to, &bits, sizeof bits); };
      if (type == FileType::kF64) put(x);
      if (type == FileType::kF32) put(static_cast<float>(x));
      if (type == FileType::kBF16) put(to_bf16(static_cast<float>(x)));
    }
    file.write(content.data(), content.size());
  }
  file.commit(true);
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
        "{}: it is not the index of a checkpoint, which has a weight_map from tensors "
        "to files",
        path);
  }
  return {names.begin(), names.end()};
}

}  // namespace moe
