#include "engine/exec/checkpoint.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/files.h"

namespace moe {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

constexpr char kMagic[8] = {'M', 'O', 'E', 'B', 'E', 'N', 'C', 'H'};
constexpr uint32_t kVersion = 2;  // version 1 has lines of fields before the others

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t element_bytes;
  int64_t next_step;
  uint64_t text_bytes;
};
static_assert(sizeof(Header) == 32);

/// Returns the text of the file: a line for each placement and for each tensor (its name and size,
/// not its values). A model is named by its tensors.
std::string text_of(const PersistentTensors& all) {
  std::string text;
  for (const PlacedLayer& layer : all.placed) {
    text += fmt::format("placement {} {}\n", layer.layer, Placement::code_size(layer.bounds));
  }
  for (const auto* tensors : {&all.parameters, &all.states}) {
    for (const Persistent& p : *tensors) text += fmt::format("tensor {} {}\n", p.name, p.size());
  }
  return text;
}

/// A file that is being written, with the checksum of the bytes so far.
class HashedFile {
 public:
  explicit HashedFile(const std::string& path) : file_(path) {}
  void write(const void* data, size_t bytes) {
    hash_ = fnv1a(hash_, data, bytes);
    file_.write(data, bytes);
  }
  uint64_t hash() const { return hash_; }
  void commit() { file_.commit(true); }

 private:
  AtomicFile file_;
  uint64_t hash_ = kFnvStart;
};

/// Renames a file that no run could have written to "<path>.corrupt", so that nothing reads it
/// again, and throws UserError.
[[noreturn]] void set_aside(const std::string& path, const std::string& why) {
  const std::string aside = path + ".corrupt";
  const bool moved = std::rename(path.c_str(), aside.c_str()) == 0;
  throw user_error("checkpoint {}: {}; {}", path, why,
                   moved ? "it was renamed to " + aside : "it could not be renamed");
}

[[noreturn]] void damaged(const std::string& path, const std::string& why) {
  set_aside(path, "damaged: " + why);
}

/// Returns the first line in which the texts differ, as "tensor wte 512 in the file, tensor wte 256
/// in this run".
std::string difference(const std::string& file, const std::string& run) {
  std::istringstream a(file), b(run);
  std::string x, y;
  do {
    if (!std::getline(a, x)) x = "nothing";
    if (!std::getline(b, y)) y = "nothing";
  } while (x == y);
  return fmt::format("{} in the file, {} in this run", x, y);
}

void check_header(const std::string& path, const Header& header, Bytes element_bytes) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    throw user_error("checkpoint {}: it is not a checkpoint of moebench", path);
  }
  if (header.version < 1 || header.version > kVersion) {
    throw user_error("checkpoint {}: its version is {}, but this program reads versions 1 to {}",
                     path, header.version, kVersion);
  }
  if (header.element_bytes != element_bytes) {
    throw user_error(
        "checkpoint {}: its floats have {} bytes, but this run's floats have {}; set the "
        "precision of the checkpoint",
        path, header.element_bytes, element_bytes);
  }
}

size_t storage_bytes(int64_t elements, Bytes element_bytes) {
  return static_cast<size_t>(elements * element_bytes);
}

/// Copies from the full tensor `content` to each rank the elements that the rank holds, and sets
/// the rest of the rank's tensor to 0.
void fill(const PersistentTensors& all, const Persistent& p, const AllBuffers& ranks,
          const std::vector<char>& content, Bytes element_bytes) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    auto* const data = static_cast<std::byte*>(ranks[r]->at(p.tensor));
    std::memset(data, 0, storage_bytes(p.local, element_bytes));
    for (const TensorSlice& s : slices_on(all, p, *ranks[r], static_cast<int64_t>(r))) {
      std::memcpy(data + s.at * element_bytes, content.data() + s.first * element_bytes,
                  storage_bytes(s.n, element_bytes));
    }
  }
}

/// Returns the number of bytes before the checksum at the end of the file. Throws UserError when
/// the file is no checkpoint, or when its checksum is wrong (then the file is renamed, see
/// set_aside).
size_t checked_bytes(const std::string& path, InputFile& in) {
  std::vector<char> block(1 << 16);
  std::string tail;  // the last bytes read, which may be the checksum
  std::string magic;
  uint64_t hash = kFnvStart;
  size_t bytes = 0;
  while (const size_t n = in.read(block.data(), block.size())) {
    tail.append(block.data(), n);
    if (magic.empty()) magic = tail.substr(0, sizeof kMagic);
    if (tail.size() <= sizeof hash) continue;
    const size_t sure = tail.size() - sizeof hash;
    hash = fnv1a(hash, tail.data(), sure);
    bytes += sure;
    tail.erase(0, sure);
  }
  if (magic != std::string_view(kMagic, sizeof kMagic)) {
    throw user_error("checkpoint {}: it is not a checkpoint of moebench", path);
  }
  if (tail.size() != sizeof hash || std::memcmp(tail.data(), &hash, sizeof hash) != 0) {
    set_aside(path, "it is corrupt: its checksum is wrong");
  }
  in.rewind();
  return bytes;
}

/// A tensor or placement in the file.
struct Block {
  bool placement;
  std::string name;
  int64_t elements;
  Bytes each;  // bytes per element
};

/// Parses a line "tensor NAME ELEMENTS" or "placement BLOCK CODES"; returns nothing for
/// a line "key=value" of version 1. Throws UserError, after renaming the file, for another line.
std::optional<Block> block_of(const std::string& path, const std::string& line,
                              Bytes element_bytes) {
  const bool placement = line.starts_with("placement ");
  const size_t name = line.find(' ') + 1, number = line.rfind(' ') + 1;
  if (!placement && !line.starts_with("tensor ")) {
    if (line.find('=') == std::string::npos)
      damaged(path,
              fmt::format("the line '{}' is neither a field, a placement nor a tensor", line));
    return std::nullopt;
  }
  int64_t elements = -1;
  const char* const end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + number, end, elements);
  if (error != std::errc() || stop != end || elements < 0 || name >= number) {
    damaged(
        path,
        fmt::format(
            "the line '{}' must have the form 'tensor NAME ELEMENTS' or 'placement BLOCK CODES'",
            line));
  }
  const Bytes each = placement ? static_cast<Bytes>(sizeof(int32_t)) : element_bytes;
  return Block{placement, line.substr(name, number - 1 - name), elements, each};
}

/// An open checkpoint whose header, text and length are consistent; the file is read up to its
/// first block.
class Opened {
 public:
  Opened(const std::string& path, Bytes element_bytes) : path_(path), in_(path, Links::kRefuse) {
    left_ = checked_bytes(path, in_);
    Header header;
    read(&header, sizeof header);
    check_header(path, header, element_bytes);
    next_step_ = header.next_step;
    if (next_step_ < 0 || next_step_ > kMostSteps) {
      damaged(path, fmt::format("its next step is {}; allowed: 0 to {}", next_step_, kMostSteps));
    }
    if (header.text_bytes > left_) {
      damaged(path,
              fmt::format(
                  "by its header it has a text of {} bytes, but only {} bytes follow the header",
                  header.text_bytes, left_));
    }
    text_.resize(header.text_bytes);
    read(text_.data(), text_.size());
    if (!text_.ends_with('\n')) damaged(path, "its text ends within a line, without a line end");
    std::istringstream lines(text_);
    std::string named;
    for (std::string line; std::getline(lines, line);) {
      auto block = block_of(path, line, element_bytes);
      if (!block) continue;
      blocks_.push_back(std::move(*block));
      named += line + "\n";
    }
    text_ = std::move(named);
    check_length();
  }

  int64_t next_step() const { return next_step_; }
  /// The lines of placements and tensors.
  const std::string& text() const { return text_; }
  const std::vector<Block>& blocks() const { return blocks_; }

  /// Reads the next bytes of the file: header, text, then the blocks, which follow each other
  /// without gaps.
  void read(void* to, size_t bytes) {
    if (bytes > left_) damaged(path_, "it ends before the last tensor that its text lists");
    if (in_.read(to, bytes) != bytes)
      throw user_error("checkpoint {}: it changed while it was read", path_);
    left_ -= bytes;
  }

 private:
  static constexpr int64_t kMostSteps = 10'000'000'000;

  void check_length() const {
    uint64_t left = left_;
    for (const Block& block : blocks_) {
      const auto n = static_cast<uint64_t>(block.elements),
                 each = static_cast<uint64_t>(block.each);
      if (n > left / each) {
        damaged(path_, fmt::format("its text lists '{}' with {} elements, but only {} bytes of the "
                                   "file are left for it",
                                   block.name, n, left));
      }
      left -= n * each;
    }
    if (left > 0) damaged(path_, fmt::format("it has {} bytes after its last tensor", left));
  }

  std::string path_;
  InputFile in_;
  uint64_t left_ = 0;  // bytes before the checksum that are not yet read
  int64_t next_step_ = 0;
  std::string text_;
  std::vector<Block> blocks_;
};

/// Throws UserError if the file has a parameter that the model has not. Files list parameters
/// before states, so what precedes any parameter of the model is no state.
void check_no_others(const std::string& path, const Opened& file, const PersistentTensors& all) {
  std::set<std::string> ours;
  for (const Persistent& p : all.parameters) ours.insert(p.name);
  const Block* other = nullptr;
  for (const Block& block : file.blocks()) {
    const bool known = block.placement || ours.contains(block.name);
    if (!known && other == nullptr) other = &block;
    if (known && !block.placement && other != nullptr) {
      throw user_error(
          "checkpoint {}: it is of another model: the model has no parameter {}, which is in the "
          "file with {} elements",
          path, other->name, other->elements);
    }
  }
}

}  // namespace

void write_checkpoint(const std::string& path, const PersistentTensors& all,
                      const AllBuffers& ranks, Bytes element_bytes, int64_t next_step) {
  const std::string text = text_of(all);
  Header header = {{}, kVersion, static_cast<uint32_t>(element_bytes), next_step, text.size()};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  HashedFile file(path);
  file.write(&header, sizeof header);
  file.write(text.data(), text.size());
  for (const PlacedLayer& layer : all.placed) {
    const Placement placement = placement_of(layer, *ranks[0]);
    file.write(placement.codes().data(), placement.codes().size_bytes());
  }
  for (const auto* tensors : {&all.parameters, &all.states}) {
    for (const Persistent& p : *tensors) {
      for (const TensorSlice& s : slices(all, p, *ranks[0])) {
        const auto* const data =
            static_cast<const std::byte*>(ranks[static_cast<size_t>(s.rank)]->at(p.tensor));
        file.write(data + s.at * element_bytes, storage_bytes(s.n, element_bytes));
      }
    }
  }
  const uint64_t hash = file.hash();
  file.write(&hash, sizeof hash);
  file.commit();
}

int64_t read_checkpoint(const std::string& path, const PersistentTensors& all,
                        const AllBuffers& ranks, Bytes element_bytes) {
  Opened file(path, element_bytes);
  const std::string expected = text_of(all);
  if (file.text() != expected) {
    throw user_error("checkpoint {}: it is of another model, optimizer or placement: {}", path,
                     difference(file.text(), expected));
  }

  // The whole file is read and checked before any rank's buffers are written.
  std::vector<std::vector<int32_t>> placements;
  for (const PlacedLayer& layer : all.placed) {
    placements.emplace_back(static_cast<size_t>(Placement::code_size(layer.bounds)));
    file.read(placements.back().data(), placements.back().size() * sizeof(int32_t));
    try {
      Placement::decode(layer.bounds, placements.back());
    } catch (const UserError& e) {
      damaged(path, fmt::format("the placement of block {}: {}", layer.layer, e.what()));
    }
  }
  std::vector<std::vector<char>> contents;
  for (const auto* tensors : {&all.parameters, &all.states}) {
    for (const Persistent& p : *tensors) {
      contents.emplace_back(storage_bytes(p.size(), element_bytes));
      file.read(contents.back().data(), contents.back().size());
    }
  }

  for (const RankBuffers* const rank : ranks) {
    for (size_t i = 0; i < placements.size(); ++i) {
      std::copy(placements[i].begin(), placements[i].end(),
                static_cast<int32_t*>(rank->at(all.placed[i].state)));
    }
  }
  auto content = contents.begin();
  for (const auto* tensors : {&all.parameters, &all.states}) {
    for (const Persistent& p : *tensors) fill(all, p, ranks, *content++, element_bytes);
  }
  return file.next_step();
}

void read_parameters(const std::string& path, const PersistentTensors& all, const AllBuffers& ranks,
                     Bytes element_bytes) {
  Opened file(path, element_bytes);
  check_no_others(path, file, all);
  std::map<std::string, std::vector<char>> contents;
  for (const Block& block : file.blocks()) {
    std::vector<char> data(storage_bytes(block.elements, block.each));
    file.read(data.data(), data.size());
    if (!block.placement) contents[block.name] = std::move(data);
  }
  for (const Persistent& p : all.parameters) {
    const auto found = contents.find(p.name);
    if (found == contents.end() || found->second.size() != storage_bytes(p.size(), element_bytes)) {
      throw user_error(
          "checkpoint {}: the model needs the parameter {} with {} elements, which is not in the "
          "file",
          path, p.name, p.size());
    }
  }
  for (const Persistent& p : all.parameters)
    fill(all, p, ranks, contents.at(p.name), element_bytes);
}

}  // namespace moe
