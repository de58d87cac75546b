// The data and initial parameters of a run. Tokens are the bytes of a text (vocabulary 256) or come
// from the reference model's generator. Recorded routing is in routing/trace.h, not here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// The input tensors of a graph: the ids and targets of each micro-batch. Micro-batch m of a step
/// has the sequences of the batch that DataSource gives as those of rank m * shares + share, where
/// the ranks of a group over tp have one share of the sequences (ModelSpec::shares).
class TokenInputs {
 public:
  /// Of a stage of a pipeline, the graph has the inputs that it reads.
  TokenInputs(const Graph& graph, const ModelSpec& model);
  /// Writes the tokens of a rank; `at` returns where a tensor is.
  void fill(const DataSource& data, int64_t step, int64_t rank,
            const std::function<void*(TensorId)>& at) const;
  /// Returns the number of the first token whose row the rank routes in the op's micro-batch, where
  /// the tokens of a step are counted rank by rank.
  int64_t first_token(const Op& op, int64_t rank) const {
    return (op.micro * shares_ * ranks_each_ + rank) * (tokens_ / ranks_each_);
  }
  /// The ids and targets of each micro-batch in turn; an invalid id for what the graph lacks.
  const std::vector<TensorId>& all() const { return all_; }
  /// Returns the tokens of the sequences of a rank in a micro-batch.
  int64_t tokens() const { return tokens_; }

 private:
  int64_t shares_, ranks_each_;  // shares of the sequences; ranks that have the same share
  int64_t tokens_;
  std::vector<TensorId> all_;
};

/// The bytes of a UTF-8 text, split into a training part and a held-out part (the last tenth).
struct TextCorpus {
  std::string source;  // path of the file or folder
  std::vector<uint8_t> train, held_out;
  /// -sum p log p over the byte frequencies of the training part, in nats.
  double unigram_entropy = 0;
};

/// Reads a file, or all regular files of a folder in the order of their names. No part of the path
/// may be a symbolic link. Throws UserError, which names the path, for a file that is missing,
/// unreadable, empty or not UTF-8 (with the byte offset), and for a text whose held-out part is
/// shorter than seq + 1 bytes.
TextCorpus read_text(const std::string& path, int64_t seq);
/// Path of a plain-text corpus that every Debian machine has (the licence texts), or `fallback`
/// where it is missing or too small. The path returned contains no link.
std::string default_corpus_path(const std::string& fallback);

/// In the following, num_ranks is the number of ranks, times that of micro-batches.
///
/// Each sequence of the batch starts at a random place of the text. The place depends only on the
/// step, the sequence's number in the global batch and the seed, so the global batch is the same
/// with any number of ranks and micro-batches.
DataSource text_data(std::shared_ptr<const TextCorpus> corpus, bool held_out,
                     int64_t batch_per_rank, int64_t num_ranks, int64_t seq, uint64_t seed);
/// The tokens of the reference model's generator, for any vocabulary.
DataSource reference_data(int64_t vocab, int64_t batch_per_rank, int64_t num_ranks, int64_t seq);

/// The rows of token ids, seq + 1 each (the last is a target only): step s takes the next rows of
/// the global batch, and after the last row the first again. Throws UserError naming `source` and
/// the row for a row of another length, an id outside the vocabulary, and fewer rows than a batch.
/// Here and in run_data(), num_ranks is the number of ranks, and the model has the micro-batches.
DataSource row_data(std::vector<std::vector<int32_t>> rows, const std::string& source,
                    const ModelSpec& model, int64_t num_ranks);

struct RunData {
  DataSource train, held_out;
};
/// The reference model's tokens. Both members are the same function: evaluation batch b equals that
/// of training step b.
RunData run_data(const ModelSpec& model, int64_t num_ranks);
/// Batches of a text. Throws UserError when the vocabulary is smaller than the 256 values of a
/// byte.
RunData run_data(const ModelSpec& model, int64_t num_ranks,
                 const std::shared_ptr<const TextCorpus>& corpus, uint64_t seed);

/// The initial values of the reference model: matrices are uniform (reference_init), LayerNorm
/// weights 1, biases and states 0.
ParamInit reference_values(const Model& model);

}  // namespace moe
