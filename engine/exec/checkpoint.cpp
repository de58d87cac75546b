#include "engine/exec/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>

#include "engine/base/errors.h"
#include "engine/base/files.h"

namespace moe {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

constexpr int64_t kMostSteps = 10'000'000'000;
constexpr const char* kFormat = "moebench 3";
constexpr const char* kChecksum = "_checksum";  // the name of its tensor
constexpr std::string_view kBegin = R"({"__metadata__":{"format":"moebench 3",)";  // of a header

/// Throws UserError unless the file is a checkpoint whose checksum is right; one whose checksum is
/// wrong is renamed.
void check_whole(const std::string& path) {
  const InputFile in(path, Links::kRefuse);
  std::string block(size_t{1} << 16, '\0');
  uint64_t hash = kFnvStart, last = 0;
  in.read_at(0, block.data(), std::min(in.size(), sizeof last + kBegin.size()));
  if (block.starts_with("MOEBENCH")) {
    throw user_error(
        "checkpoint {}: it has the format of before; scripts/convert_checkpoint.py OLD LIKE NEW "
        "writes one of today from it",
        path);
  }
  if (block.compare(sizeof last, kBegin.size(), kBegin) != 0) {
    throw user_error("checkpoint {}: it is not a checkpoint of moebench, of format '{}'", path,
                     kFormat);
  }
  const size_t end = in.size() - sizeof last;
  for (size_t at = 0; at < end; at += block.size()) {
    const size_t n = std::min(block.size(), end - at);
    in.read_at(at, block.data(), n);
    hash = fnv1a(hash, block.data(), n);
  }
  in.read_at(end, &last, sizeof last);
  if (last == hash) return;
  const std::string aside = path + ".corrupt";
  const bool moved = std::rename(path.c_str(), aside.c_str()) == 0;
  throw user_error("checkpoint {}: it is corrupt: its checksum is wrong; {}", path,
                   moved ? "it was renamed to " + aside : "it could not be renamed");
}

/// A tensor as a checkpoint has it.
struct Stored : Persistent {
  const char* type;
  Bytes each;
};

/// Returns what a file has in its order, but for the checksum: parameters, states, placements.
std::vector<Stored> stored_of(const PersistentTensors& all, Bytes element_bytes) {
  std::vector<Stored> stored;
  const char* const type = element_bytes == sizeof(double) ? "F64" : "F32";
  for (const Persistent& p : all.parameters) stored.push_back({p, type, element_bytes});
  for (const Persistent& p : all.states) stored.push_back({p, type, element_bytes});
  for (const PlacedLayer& layer : all.placed) {
    const int64_t codes = Placement::code_size(layer.bounds);
    const std::string name = fmt::format("placement.{}", layer.layer);
    stored.push_back({{name, layer.state, {codes}, 1, codes, codes}, "I32", sizeof(int32_t)});
    stored.back().first_rank = layer.first_rank;
  }
  return stored;
}

/// Throws UserError, which names the first difference, unless the file has these facts, and these
/// tensors in this order. whole: nothing may follow them.
void check_same(const Safetensors& file, const Metadata& facts, const std::vector<Stored>& stored,
                bool whole) {
  const auto line = [](const std::string& name, const Shape& shape, const std::string& type) {
    return fmt::format("tensor {} {} {}\n", name, shape_text(shape), type);
  };
  std::map<std::string, std::string> metadata = file.metadata();
  std::map<size_t, std::string> tensors;  // by the first byte in the file
  std::string theirs, ours, x, y;
  for (const auto& [name, value] : facts) {
    theirs += fmt::format("{} '{}'\n", name, metadata[name]);
    ours += fmt::format("{} '{}'\n", name, value);
  }
  for (const auto& [name, entry] : file.entries()) {
    if (name != kChecksum) tensors[entry.begin] += line(name, entry.shape, name_of(entry.type));
  }
  for (const auto& [begin, text] : tensors) theirs += text;
  for (const Stored& s : stored) ours += line(s.name, s.shape, s.type);
  if (whole ? theirs == ours : theirs.starts_with(ours)) return;
  std::istringstream a(theirs), b(ours);
  do {
    if (!std::getline(a, x)) x = "nothing";
    if (!std::getline(b, y)) y = "nothing";
  } while (x == y);
  throw user_error(
      "checkpoint {}: it is of another run: {} in the file, {} in this run; give the same model, "
      "optimizer, placement, precision, batch and tokens",
      file.path(), x, y);
}

/// Returns the step to continue with. Throws UserError for one that no run writes.
int64_t checked_step(const Safetensors& file) {
  const std::string text = std::map(file.metadata())["next_step"];
  const int64_t step = std::strtoll(text.c_str(), nullptr, 10);
  if (text == std::to_string(step) && step >= 0 && step <= kMostSteps) return step;
  throw user_error("checkpoint {}: its next_step is '{}'; allowed: 0 to {}", file.path(), text,
                   kMostSteps);
}

/// Throws UserError for a placement that is not valid.
void check_placement(const Safetensors& file, const PlacedLayer& layer, const Stored& stored) {
  std::vector<int32_t> codes(static_cast<size_t>(stored.size()));
  file.find(stored.name)->read(0, codes.data(), codes.size() * sizeof(int32_t));
  try {
    Placement::decode(layer.bounds, codes);
  } catch (const UserError& e) {
    throw user_error("checkpoint {}: its {}: {}", file.path(), stored.name, e.what());
  }
}

/// Copies a full tensor from the file to each rank, of which each gets the elements that it holds,
/// and sets the rest of the rank's tensor to 0.
void fill(const Safetensors& file, const PersistentTensors& all, const Stored& stored,
          const AllBuffers& ranks) {
  const auto bytes = [&](int64_t n) { return static_cast<size_t>(n * stored.each); };
  for (int64_t r = 0; r < all.num_ranks; ++r) {
    const RankBuffers& rank = *ranks[static_cast<size_t>(stored.first_rank + r)];
    auto* const data = static_cast<std::byte*>(rank.at(stored.tensor));
    std::memset(data, 0, bytes(stored.local));
    for (const TensorSlice& s : slices_on(all, stored, rank, r)) {
      file.find(stored.name)->read(bytes(s.first), data + bytes(s.at), bytes(s.n));
    }
  }
}

/// Fills what an earlier pipeline rank holds, too, and is in the file once.
void fill_copies(const Safetensors& file, const PersistentTensors& all, const AllBuffers& ranks,
                 Bytes element_bytes) {
  for (const Persistent& copy : all.copies) {
    if (file.find(copy.name) != nullptr) fill(file, all, {copy, "", element_bytes}, ranks);
  }
}

}  // namespace

void write_checkpoint(const std::string& path, const PersistentTensors& all,
                      const AllBuffers& ranks, Bytes element_bytes, int64_t next_step,
                      const Metadata& facts) {
  Metadata metadata = {{"format", kFormat}, {"next_step", std::to_string(next_step)}};
  metadata.insert(metadata.end(), facts.begin(), facts.end());
  const std::vector<Stored> stored = stored_of(all, element_bytes);
  std::vector<FileTensor> tensors;
  for (const Stored& s : stored) {
    tensors.push_back({s.name, s.type, s.shape, static_cast<size_t>(s.size() * s.each)});
  }
  uint64_t hash = kFnvStart;
  tensors.push_back({kChecksum, "U8", {sizeof hash}, sizeof hash});
  AtomicFile file(path);
  const auto put = [&](const void* data, int64_t bytes) {
    hash = fnv1a(hash, data, static_cast<size_t>(bytes));
    file.write(data, static_cast<size_t>(bytes));
  };
  const std::string header = safetensors_header(metadata, tensors);
  put(header.data(), std::ssize(header));
  for (const Stored& s : stored) {
    for (const TensorSlice& slice : slices(all, s, *ranks[static_cast<size_t>(s.first_rank)])) {
      const void* const data = ranks[static_cast<size_t>(slice.rank)]->at(s.tensor);
      put(static_cast<const std::byte*>(data) + slice.at * s.each, slice.n * s.each);
    }
  }
  file.write(&hash, sizeof hash);
  file.commit(true);
}

int64_t read_checkpoint(const std::string& path, const PersistentTensors& all,
                        const AllBuffers& ranks, Bytes element_bytes, const Metadata& facts) {
  check_whole(path);
  const Safetensors file({path});
  std::vector<Stored> stored = stored_of(all, element_bytes);
  check_same(file, facts, stored, true);
  const int64_t step = checked_step(file);
  std::reverse(stored.begin(), stored.end());  // the placements say which experts are filled
  for (size_t i = 0; i < all.placed.size(); ++i) {
    check_placement(file, all.placed[all.placed.size() - 1 - i], stored[i]);
  }
  for (const Stored& s : stored) fill(file, all, s, ranks);
  fill_copies(file, all, ranks, element_bytes);
  return step;
}

void read_parameters(const std::string& path, const PersistentTensors& all, const AllBuffers& ranks,
                     Bytes element_bytes) {
  check_whole(path);
  const Safetensors file({path});
  const std::vector<Stored> stored =
      stored_of({all.num_ranks, {}, all.parameters, {}, {}}, element_bytes);
  check_same(file, {}, stored, false);
  for (const Stored& s : stored) fill(file, all, s, ranks);
  fill_copies(file, all, ranks, element_bytes);
}

}  // namespace moe
