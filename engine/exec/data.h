// What a run begins with and reads: initial parameters, and tokens, of a text as bytes (vocabulary
// 256) or the reference model's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// Bytes of a UTF-8 text, cut into a training and a held-out part (the last tenth).
struct TextCorpus {
  std::string source;  // file or folder
  std::vector<uint8_t> train, held_out;
  /// -sum p log p over byte frequencies of the training part, in nats.
  double unigram_entropy = 0;
};

/// Reads a file, or all regular files of a folder in name order; no part of the path may be a link.
/// Throws UserError naming the path for a missing, unreadable, empty or non-UTF-8 file (with the
/// byte offset), or a text whose held-out part is shorter than seq + 1.
TextCorpus read_text(const std::string& path, int64_t seq);
/// A plain-text corpus that every Debian machine has (licences and copyright files), else
/// `fallback`; without links.
std::string default_corpus_path(const std::string& fallback);

/// Batch rows at counter-based random places: (step, global row, seed) alone decides them, so the
/// same global batch is seen with any number of ranks.
DataSource text_data(std::shared_ptr<const TextCorpus> corpus, bool held_out,
                     int64_t batch_per_rank, int64_t num_ranks, int64_t seq, uint64_t seed);
/// The reference model's tokens for any vocabulary.
DataSource reference_data(int64_t vocab, int64_t batch_per_rank, int64_t num_ranks, int64_t seq);

/// Training batches of a run, and held-out ones.
struct RunData {
  DataSource train, held_out;
};
/// The reference model's tokens, which hold nothing out.
RunData run_data(const ModelSpec& model, int64_t num_ranks);
/// Those of a text. Throws UserError for a vocabulary that has not all bytes.
RunData run_data(const ModelSpec& model, int64_t num_ranks,
                 const std::shared_ptr<const TextCorpus>& corpus, uint64_t seed);

/// Initial values as the reference model's: matrices uniform (reference_init), LayerNorm weights 1,
/// biases 0.
ParamInit reference_values(const ModelSpec& model);

}  // namespace moe
