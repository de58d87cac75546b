#include "engine/exec/data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "engine/base/errors.h"
#include "engine/base/files.h"
#include "engine/base/rng.h"
#include "engine/base/utf8.h"
#include "engine/graph/micro_batches.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr char kSystemTexts[] = "/usr/share/common-licenses";
constexpr uintmax_t kEnoughBytes = 100'000;
constexpr uint64_t kReferenceStream = 1'000'003;

void append_file(const fs::path& path, std::vector<uint8_t>& text) {
  const size_t start = text.size();
  InputFile file(path, Links::kRefuse, kMostBytesOfFile - start);
  text.resize(start + file.size());
  if (file.read(text.data() + start, file.size()) != file.size()) {
    throw user_error("cannot read the text '{}' to its end; it must not change while it is read",
                     path.string());
  }
  if (const auto at = first_invalid_byte(
          {reinterpret_cast<const char*>(text.data()) + start, text.size() - start})) {
    throw user_error("the text '{}' is not UTF-8, but must be: byte 0x{:02x} at offset {}",
                     path.string(), text[start + *at], *at);
  }
}

/// Returns the regular files of a folder, sorted by path. Throws UserError when it has none or
/// cannot be read. Symbolic links are skipped: most of them point to a file that is in the folder
/// already.
std::vector<fs::path> files_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (fs::is_regular_file(entry.symlink_status(error))) files.push_back(entry.path());
  }
  if (error) throw user_error("cannot read the folder '{}': {}", folder.string(), error.message());
  if (files.empty())
    throw user_error("the folder '{}' holds no regular file, so there is no text to train on",
                     folder.string());
  std::sort(files.begin(), files.end());
  return files;
}

double entropy(const std::vector<uint8_t>& text) {
  std::array<int64_t, 256> counts{};
  for (const uint8_t byte : text) ++counts[byte];
  double sum = 0;
  for (const int64_t count : counts) {
    const double p = static_cast<double>(count) / static_cast<double>(text.size());
    if (count > 0) sum -= p * std::log(p);
  }
  return sum;
}

/// 64 random bits that depend only on these three arguments.
uint64_t random64(int64_t step, int64_t row, uint64_t seed) {
  const uint64_t low = hash32(seed, 0), high = hash32(seed >> 32, 1);
  const uint64_t a = hash32(static_cast<uint64_t>(step), low ^ (high << 1));
  const uint64_t b = hash32(static_cast<uint64_t>(step), high ^ (low << 1) ^ 0x5bd1e995);
  const uint64_t i = static_cast<uint64_t>(row);
  return (static_cast<uint64_t>(hash32(i, a)) << 32) | hash32(i, b);
}

/// Writes one sequence whose token at position pos is token(pos), for pos = 0 .. seq: ids are the
/// tokens [0, seq), targets the tokens [1, seq].
template <class Token>
void fill_row(int32_t* ids, int32_t* targets, int64_t seq, const Token& token) {
  for (int64_t pos = 0; pos < seq; ++pos) {
    ids[pos] = token(pos);
    targets[pos] = token(pos + 1);
  }
}

}  // namespace

TokenInputs::TokenInputs(const Graph& graph, const ModelSpec& model)
    : shares_(model.shares(graph.num_ranks)),
      ranks_each_(graph.num_ranks / shares_),
      tokens_(model.batch_per_device * model.seq) {
  const int32_t micro_batches = num_micro_batches(graph);
  for (int32_t micro = 0; micro < micro_batches; ++micro) {
    for (const char* const first : {"ids", "targets"}) {
      all_.push_back(graph.find_tensor(name_in(first, micro)));
    }
  }
}

void TokenInputs::fill(const DataSource& data, int64_t step, int64_t rank,
                       const std::function<void*(TensorId)>& at) const {
  std::vector<int32_t> unread;  // by this graph
  const auto to = [&](TensorId t) {
    if (t.valid()) return static_cast<int32_t*>(at(t));
    unread.resize(static_cast<size_t>(tokens_));
    return unread.data();
  };
  for (size_t i = 0; i < all_.size(); i += 2) {
    if (!all_[i].valid() && !all_[i + 1].valid()) continue;
    data(step, static_cast<int64_t>(i / 2) * shares_ + rank / ranks_each_, to(all_[i]),
         to(all_[i + 1]));
  }
}

TextCorpus read_text(const std::string& path, int64_t seq) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    throw user_error("the text '{}' does not exist; give a file or a folder", path);
  std::vector<uint8_t> text;
  if (fs::is_directory(status)) {
    for (const fs::path& file : files_of(path)) append_file(file, text);
  } else if (fs::is_regular_file(status)) {
    append_file(path, text);
  } else {
    throw user_error("the text '{}' is neither a file nor a folder; give one of them", path);
  }
  if (text.empty())
    throw user_error("the text '{}' is empty, so there is no text to train on", path);
  const size_t held_out = text.size() / 10;
  if (held_out < static_cast<size_t>(seq) + 1) {
    throw user_error(
        "the text '{}' is too short: its last tenth has {} bytes, but a sequence of seq = {} "
        "tokens needs {}",
        path, held_out, seq, seq + 1);
  }
  TextCorpus corpus;
  corpus.source = path;
  const auto cut = text.end() - static_cast<int64_t>(held_out);
  corpus.held_out.assign(cut, text.end());
  text.erase(cut, text.end());
  corpus.train = std::move(text);
  corpus.unigram_entropy = entropy(corpus.train);
  return corpus;
}

std::string default_corpus_path(const std::string& fallback) {
  std::error_code error;
  uintmax_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(kSystemTexts, error)) {
    if (!fs::is_regular_file(entry.symlink_status(error))) continue;
    const uintmax_t size = entry.file_size(error);
    if (!error) bytes += size;
  }
  return fs::weakly_canonical(bytes >= kEnoughBytes ? kSystemTexts : fallback).string();
}

DataSource text_data(std::shared_ptr<const TextCorpus> corpus, bool held_out,
                     int64_t batch_per_rank, int64_t num_ranks, int64_t seq, uint64_t seed) {
  const size_t bytes = (held_out ? corpus->held_out : corpus->train).size();
  MOE_CHECK(static_cast<int64_t>(bytes) > seq && num_ranks > 0,
            "text data needs at least 1 rank and more than seq = {} bytes of text, but has {} "
            "ranks and {} bytes",
            seq, num_ranks, bytes);
  return [=](int64_t step, int64_t rank, int32_t* ids, int32_t* targets) {
    const std::vector<uint8_t>& text = held_out ? corpus->held_out : corpus->train;
    const uint64_t places = text.size() - static_cast<uint64_t>(seq);
    for (int64_t r = 0; r < batch_per_rank; ++r) {
      const uint64_t h = random64(step, rank * batch_per_rank + r, seed);
      // Scales 64 bits to [0, places) by the high half of a 128-bit product.
      __extension__ using Wide = unsigned __int128;
      const uint8_t* row = text.data() + static_cast<uint64_t>((Wide{h} * places) >> 64);
      fill_row(ids + r * seq, targets + r * seq, seq, [&](int64_t pos) { return row[pos]; });
    }
  };
}

DataSource reference_data(int64_t vocab, int64_t batch_per_rank, int64_t num_ranks, int64_t seq) {
  const int64_t batch = batch_per_rank * num_ranks;
  return [=](int64_t step, int64_t rank, int32_t* ids, int32_t* targets) {
    for (int64_t r = 0; r < batch_per_rank; ++r) {
      const int64_t row = step * batch + rank * batch_per_rank + r;
      fill_row(ids + r * seq, targets + r * seq, seq, [&](int64_t pos) {
        const uint64_t u = random24(static_cast<uint64_t>(row * (seq + 1) + pos), kReferenceStream);
        const uint64_t skewed = (u * u) >> 24;  // small ids are more frequent
        return static_cast<int32_t>((skewed * static_cast<uint64_t>(vocab)) >> 24);
      });
    }
  };
}

DataSource row_data(std::vector<std::vector<int32_t>> rows, const std::string& source,
                    const ModelSpec& model, int64_t num_ranks) {
  const int64_t per_rank = model.batch_per_device, seq = model.seq;
  const int64_t batch = per_rank * model.shares(num_ranks) * model.micro_batches;
  const auto n = static_cast<int64_t>(rows.size());
  if (n < batch) {
    throw user_error(
        "{}: it has {} rows of ids, but a step takes {}, the model's sequences on all {} ranks{}",
        source, n, batch, num_ranks,
        model.micro_batches > 1 ? fmt::format(" in {} micro-batches", model.micro_batches) : "");
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    if (static_cast<int64_t>(rows[r].size()) != seq + 1) {
      throw user_error("{}: row {} has {} ids, but must have model.seq + 1 = {}", source, r + 1,
                       rows[r].size(), seq + 1);
    }
    for (const int32_t id : rows[r]) {
      if (id < 0 || id >= model.vocab) {
        throw user_error("{}: row {} has the id {}, allowed: 0 to {} (below model.vocab)", source,
                         r + 1, id, model.vocab - 1);
      }
    }
  }
  const auto all = std::make_shared<const std::vector<std::vector<int32_t>>>(std::move(rows));
  return [=](int64_t step, int64_t rank, int32_t* ids, int32_t* targets) {
    for (int64_t r = 0; r < per_rank; ++r) {
      const auto& row = (*all)[static_cast<size_t>((step * batch + rank * per_rank + r) % n)];
      fill_row(ids + r * seq, targets + r * seq, seq,
               [&](int64_t pos) { return row[static_cast<size_t>(pos)]; });
    }
  };
}

RunData run_data(const ModelSpec& model, int64_t num_ranks) {
  const DataSource data = reference_data(model.vocab, model.batch_per_device,
                                         model.shares(num_ranks) * model.micro_batches, model.seq);
  return {data, data};
}

RunData run_data(const ModelSpec& model, int64_t num_ranks,
                 const std::shared_ptr<const TextCorpus>& corpus, uint64_t seed) {
  constexpr int64_t kBytes = 256;
  if (model.vocab < kBytes) {
    throw user_error(
        "model.vocab = {}: must be at least 256, because the tokens of a text are its bytes",
        model.vocab);
  }
  const auto part = [&](bool held_out) {
    return text_data(corpus, held_out, model.batch_per_device,
                     model.shares(num_ranks) * model.micro_batches, model.seq, seed);
  };
  return {part(false), part(true)};
}

ParamInit reference_values(const Model& model) {
  return [infos = model.parameters](uint64_t element, uint64_t parameter) {
    if (parameter >= infos.size()) return 0.0;
    switch (infos[parameter].init) {
      case ParamInfo::Init::kOne:
        return 1.0;
      case ParamInfo::Init::kZero:
        return 0.0;
      default:
        return reference_init(element, parameter);
    }
  };
}

}  // namespace moe
