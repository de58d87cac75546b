#include "engine/exec/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/files.h"

namespace moe {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

constexpr char kMagic[8] = {'M', 'O', 'E', 'B', 'E', 'N', 'C', 'H'};
constexpr uint32_t kVersion = 1;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t element_bytes;
  int64_t next_step;
  uint64_t text_bytes;
};
static_assert(sizeof(Header) == 32);

/// The lines that say which model the tensors belong to.
std::string text_of(const ModelSpec& m, const Persistents& all) {
  std::string text;
  const std::pair<const char*, int64_t> fields[] = {
      {"vocab", m.vocab},     {"layers", m.layers},
      {"hidden", m.hidden},   {"heads", m.heads},
      {"seq", m.seq},         {"ffn", m.ffn_size()},
      {"experts", m.experts}, {"moe_every", m.moe_every}};
  for (const auto& [key, value] : fields) text += fmt::format("{}={}\n", key, value);
  for (const PlacedLayer& layer : all.placed) {
    text += fmt::format("placement {} {}\n", layer.layer, Placement::code_size(layer.bounds));
  }
  for (const auto* tensors : {&all.parameters, &all.states}) {
    for (const Persistent& p : *tensors) text += fmt::format("tensor {} {}\n", p.name, p.size());
  }
  return text;
}

/// A file and the checksum of what was written into it.
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

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), in_(path, Links::kRefuse) {}
  void read(void* to, size_t bytes) {
    if (in_.read(to, bytes) != bytes) throw user_error("checkpoint {}: cut off", path_);
  }

 private:
  std::string path_;
  InputFile in_;
};

/// The first line in which the texts differ, as "hidden=128 in the file, hidden=64 in this run".
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
    throw user_error("checkpoint {}: not a checkpoint of moebench", path);
  }
  if (header.version != kVersion) {
    throw user_error("checkpoint {}: version {}, this program reads version {}", path,
                     header.version, kVersion);
  }
  if (header.element_bytes != element_bytes) {
    throw user_error("checkpoint {}: floats of {} bytes, this run has {}", path,
                     header.element_bytes, element_bytes);
  }
}

size_t storage_bytes(int64_t elements, Bytes element_bytes) {
  return static_cast<size_t>(elements * element_bytes);
}

constexpr uint64_t kLongestText = 64 << 20;  // a damaged length must not become an allocation

/// What each rank holds of a full tensor.
void fill(const Persistents& all, const Persistent& p, const AllBuffers& ranks,
          const std::vector<char>& content, Bytes element_bytes) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    auto* const data = static_cast<std::byte*>(ranks[r]->at(p.tensor));
    std::memset(data, 0, storage_bytes(p.local, element_bytes));
    for (const Stretch& s : stretches_on(all, p, *ranks[r], static_cast<int64_t>(r))) {
      std::memcpy(data + s.at * element_bytes, content.data() + s.first * element_bytes,
                  storage_bytes(s.n, element_bytes));
    }
  }
}

/// Holds the whole file against the checksum at its end. One that is a checkpoint and does not fit
/// is renamed to "<path>.corrupt", so that nothing picks it up again.
void set_aside_if_corrupt(const std::string& path) {
  InputFile in(path, Links::kRefuse);
  std::vector<char> block(1 << 20);
  std::string tail;  // what may be the checksum
  std::string magic;
  uint64_t hash = kFnvStart;
  while (const size_t n = in.read(block.data(), block.size())) {
    tail.append(block.data(), n);
    if (magic.empty()) magic = tail.substr(0, sizeof kMagic);
    if (tail.size() <= sizeof hash) continue;
    const size_t sure = tail.size() - sizeof hash;
    hash = fnv1a(hash, tail.data(), sure);
    tail.erase(0, sure);
  }
  if (magic != std::string_view(kMagic, sizeof kMagic)) {
    throw user_error("checkpoint {}: not a checkpoint of moebench", path);
  }
  if (tail.size() == sizeof hash && std::memcmp(tail.data(), &hash, sizeof hash) == 0) return;
  const std::string aside = path + ".corrupt";
  const bool moved = std::rename(path.c_str(), aside.c_str()) == 0;
  throw user_error("checkpoint {}: corrupt, its checksum does not fit; {}", path,
                   moved ? "set aside as " + aside : "it could not be renamed");
}

}  // namespace

void write_checkpoint(const std::string& path, const Plan& plan, const Persistents& all,
                      const AllBuffers& ranks, Bytes element_bytes, int64_t next_step) {
  const std::string text = text_of(plan.spec.model, all);
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
      for (const Stretch& s : stretches(all, p, *ranks[0])) {
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

int64_t read_checkpoint(const std::string& path, const Plan& plan, const Persistents& all,
                        const AllBuffers& ranks, Bytes element_bytes) {
  set_aside_if_corrupt(path);
  Reader file(path);
  Header header;
  file.read(&header, sizeof header);
  check_header(path, header, element_bytes);
  const std::string expected = text_of(plan.spec.model, all);
  if (header.text_bytes > kLongestText) throw user_error("checkpoint {}: damaged header", path);
  std::string text(header.text_bytes, '\0');
  file.read(text.data(), text.size());
  if (text != expected) {
    throw user_error("checkpoint {}: another model: {}", path, difference(text, expected));
  }

  // All of it is read and checked before any rank is touched.
  std::vector<std::vector<int32_t>> placements;
  for (const PlacedLayer& layer : all.placed) {
    placements.emplace_back(static_cast<size_t>(Placement::code_size(layer.bounds)));
    file.read(placements.back().data(), placements.back().size() * sizeof(int32_t));
    Placement::decode(layer.bounds, placements.back());
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
  return header.next_step;
}

void read_parameters(const std::string& path, const Plan& plan, const Persistents& all,
                     const AllBuffers& ranks, Bytes element_bytes) {
  set_aside_if_corrupt(path);
  Reader file(path);
  Header header;
  file.read(&header, sizeof header);
  check_header(path, header, element_bytes);
  if (header.text_bytes > kLongestText) throw user_error("checkpoint {}: damaged header", path);
  std::string text(header.text_bytes, '\0');
  file.read(text.data(), text.size());
  const std::string sizes = text.substr(0, text.find("moe_every="));
  const std::string own = text_of(plan.spec.model, all);
  if (sizes != own.substr(0, own.find("moe_every="))) {
    throw user_error("checkpoint {}: another model: {}", path, difference(text, own));
  }
  std::map<std::string, std::vector<char>> contents;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, name;
    int64_t size = 0;
    words >> what >> name >> size;
    if (what != "tensor" && what != "placement") continue;
    const Bytes each = what == "tensor" ? element_bytes : static_cast<Bytes>(sizeof(int32_t));
    std::vector<char> data(storage_bytes(size, each));
    file.read(data.data(), data.size());
    if (what == "tensor") contents[name] = std::move(data);
  }
  for (const Persistent& p : all.parameters) {
    const auto found = contents.find(p.name);
    if (found == contents.end() || found->second.size() != storage_bytes(p.size(), element_bytes)) {
      throw user_error("checkpoint {}: it has no parameter {} of {} elements", path, p.name,
                       p.size());
    }
  }
  for (const Persistent& p : all.parameters)
    fill(all, p, ranks, contents.at(p.name), element_bytes);
}

}  // namespace moe
