// Parameters from and to files in the safetensors format (an 8-byte length, a JSON header with the
// type, shape and place of each tensor, then their bytes), as Hugging Face checkpoints have them.
// Where a model's tensors are in the files is given by a TensorSource for each.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/files.h"
#include "engine/model/model.h"

namespace moe {

/// Where a parameter or state of a model is in the files. A name that files lack is looked for
/// below the prefixes of models that hold the language model too (model.language_model.,
/// language_model., thinker.), and without "model.". The parameter's shape is seen as [experts,
/// rows, cols] (without experts [rows, cols]; a vector has one column).
struct TensorSource {
  /// The tensors that lie one below the other along the rows. With "%d" in a name there is one such
  /// tensor for each expert, numbered from 0.
  std::vector<std::string> names;
  /// The tensor in the file is [experts, cols, rows].
  bool transposed = false;
  /// Rows i and rows / 2 + i of the parameter are rows 2 i and 2 i + 1 in the file.
  bool interleaved = false;
  /// What is added to the numbers of the file: 1 for norms that multiply by 1 + w.
  double plus = 0;
  /// Where the tensor is in files that lack the first of `names`: experts of a layer in one tensor
  /// or each by itself. Files are written by `names`.
  std::vector<TensorSource> others = {};
};
/// By the name of the model's parameter or state.
using TensorSources = std::map<std::string, TensorSource>;

/// Type of numbers in a file. A tensor of kF8E4M3 has scales, one per block of 128 x 128, in the
/// tensor "<name>_scale_inv" (DeepSeek-V3, Kimi-K2); kF8E8M0 is a power of two, for scales. kU8 is
/// that of MXFP4: "<name>_blocks" has two codes of E2M1 in a byte, the lower one first, and
/// "<name>_scales" one power of two per 32 of them (gpt-oss). Nothing is read from kI32.
enum class FileType : uint8_t { kF64, kF32, kF16, kBF16, kI32, kF8E4M3, kF8E8M0, kU8 };
constexpr std::array<const char*, 8> names_of(FileType) {
  return {"F64", "F32", "F16", "BF16", "I32", "F8_E4M3", "F8_E8M0", "U8"};
}

/// Bytes of a number.
size_t type_bytes(FileType type);
/// Whether parameters are read from tensors of this type as they are, or with their scales.
bool is_read(FileType type);

/// Tensors of one or more files. A tensor is in memory while threads read it.
class Safetensors {
 public:
  struct File {
    explicit File(const std::string& path) : file(path, Links::kRefuse) {}
    InputFile file;
    std::mutex reading;
    std::map<size_t, std::weak_ptr<const std::string>> read;  // by the first byte in the file
  };
  struct Entry {
    FileType type = FileType::kF32;
    Shape shape;
    size_t begin = 0, bytes = 0;  // in the file
    std::shared_ptr<File> file;
    /// Returns an element. A thread keeps the tensor that it read last, which all threads share.
    /// Throws UserError with the path if the file has become shorter.
    double at(int64_t i) const;
    /// Copies `n` bytes of the tensor, from its byte `first` on. Throws as at() does.
    void read(size_t first, void* to, size_t n) const { file->file.read_at(begin + first, to, n); }

   private:
    const std::string& content() const;
  };
  /// Lets the calling thread keep no tensor any longer.
  static void forget_read();

  /// Opens all files, which must not be links. Throws UserError with the path for a file that
  /// cannot be read or is not in the format, and for a tensor that is in two files. The tensors of
  /// a file must fill it without a gap and without lying over each other, as in the format's own
  /// reader (huggingface/safetensors, Metadata::validate).
  explicit Safetensors(const std::vector<std::string>& paths);
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;

  /// Returns null if there is no tensor of this name.
  const Entry* find(const std::string& name) const;
  /// Returns how the tensor `name`, from which no parameter is read, is in the files, as a clause
  /// for an error: of a type that is not read, or not at all.
  std::string form_of(const std::string& name) const;
  const std::map<std::string, Entry>& entries() const { return entries_; }
  /// The texts of the metadata.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  void open(const std::string& path);

  std::string path_;  // of the first file
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> unread_;  // types of tensors that are no parameters
  std::map<std::string, std::string> metadata_;
};

/// The values of all parameters of a model, then of its states.
class LoadedParameters {
 public:
  /// Throws UserError naming the model's tensor for one without source, and for a source that the
  /// files lack or that has another shape.
  LoadedParameters(std::shared_ptr<const Safetensors> files, const Model& model,
                   const TensorSources& sources);
  ~LoadedParameters();
  /// Element i of the full tensor number t (parameters, then states).
  double value(uint64_t element, uint64_t tensor) const;
  /// Names of the files' tensors that no tensor of the model reads.
  const std::vector<std::string>& unused() const { return unused_; }

 private:
  struct Tensor;

  std::shared_ptr<const Safetensors> files_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> unused_;
};

/// Texts by name.
using Metadata = std::vector<std::pair<std::string, std::string>>;
/// A tensor as the header of a file has it.
struct FileTensor {
  std::string name, type;
  Shape shape;
  size_t bytes = 0;
};
/// Returns the beginning of a file, which the contents of the tensors follow in their order: the
/// header, with `metadata` as its first entry, and the length before it.
std::string safetensors_header(const Metadata& metadata, const std::vector<FileTensor>& tensors);

/// Writes a file in `type` from the full tensors of a model. value(i, t): as in LoadedParameters.
/// Throws RunError, which names the path.
void write_safetensors(const std::string& path, const Model& model, const TensorSources& sources,
                       FileType type,
                       const std::function<double(uint64_t element, uint64_t tensor)>& value);

/// Returns the names of the files in the index of a checkpoint of several files
/// (model.safetensors.index.json), whose content is `text`. Throws UserError with `path`.
std::vector<std::string> files_of_index(std::string_view text, const std::string& path);

}  // namespace moe
