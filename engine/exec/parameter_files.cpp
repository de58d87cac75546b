// Parameters of a model in tensors of files (safetensors.h): which tensors they are, how they lie
// in them, and the scales of numbers of 8 and 4 bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/files.h"
#include "engine/base/names.h"
#include "engine/exec/safetensors.h"

namespace moe {
namespace {

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

}  // namespace moe
