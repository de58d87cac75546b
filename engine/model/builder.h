// ModelBuilder: what a model's blocks (blocks.h), or a recipe's own, use to declare parameters and
// to add ops. A model is built once, for a gate and a number of ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model.h"
#include "engine/model/routers.h"

namespace moe {

class ModelBuilder {
 public:
  /// Adds the tensors "ids" and "targets" to `graph`, which must be empty and outlive the builder.
  /// Throws UserError as check() and check_router_losses() do.
  ModelBuilder(Graph& graph, ModelSpec spec, GateSpec gate, int64_t num_ranks);

  const ModelSpec& spec() const { return spec_; }
  const GateSpec& gate() const { return gate_; }
  const Graph& graph() const { return graph_; }
  const Grid& grid() const { return grid_; }
  TensorId ids() const { return ids_; }
  TensorId targets() const { return targets_; }
  /// Returns ids() or targets() `by` places further on in their sequences, and `fill` beyond the
  /// ends; with by = 0 the tokens themselves. Throws UserError where no token is left.
  TensorId ahead(std::string_view name, TensorId tokens, int64_t by, int64_t fill);
  /// Returns the length of the last axis.
  int64_t width(TensorId x) const { return graph_.tensor(x).shape.back(); }

  /// Begins block `block`, from 0: the names of parameters, states and ops get the prefix
  /// "b<block>.". -1: what follows is in no block.
  void begin_block(int64_t block) { block_ = block; }
  int64_t block() const { return block_; }
  /// Sets the segment of the ops that follow.
  void begin_segment(Segment segment) { segment_ = segment; }

  /// Declares a parameter. shape: of the full tensor; of experts its first axis is the experts.
  /// Throws UserError if the model has a parameter or state of this name, or the shape is empty.
  TensorId parameter(std::string_view name, const Shape& shape, ParamInfo::Init init,
                     Held held = {});
  /// Declares a state of the model, which is 0 at first.
  TensorId state(std::string_view name, const Shape& shape);
  /// Returns the parameter of this full name ("wte"); throws UserError if there is none.
  TensorId declared(std::string_view name) const;

  // Where tp splits products, rows of tokens between them are spread along their second axis over
  // the ranks of a group (sequence parallelism, Korthikanti et al. 2022, arXiv 2205.05198). Without
  // tp these functions return `x`.
  /// Returns the rows of all ranks of the group, [B,S,..] of x [B,S/tp,..].
  TensorId all_rows(std::string_view name, TensorId x);
  /// Returns the columns of all ranks of the group, which have the same rows.
  TensorId all_columns(std::string_view name, TensorId x);
  /// Returns this rank's rows of the sum of x [B,S,..] over the ranks of the group.
  TensorId sum_to_own_rows(std::string_view name, TensorId x);
  // Where cp splits sequences, a rank's tokens are of its two parts of a sequence, of 2 cp equal
  // ones the number c and the number 2 cp - 1 - c, so that all ranks see as many keys. S above is
  // then the tokens of both parts.
  /// Returns the input tokens whose rows the rank has, [B,S/tp].
  TensorId own_ids();
  /// Returns the tokens of the rank's parts of the sequences of ids [B,..], along axis 1, or of
  /// what has a row per token along another axis. from, to: the axes of the grid over which ranks
  /// have other tokens.
  TensorId own_parts(std::string_view name, TensorId x, int64_t axis, Axis from = Axis::kCp,
                     Axis to = Axis::kCp);
  /// Adds the op attend, named "attn.core", of queries, keys and values [B,S,..] that are of the
  /// rank's parts of sequences, and what brings the keys and values of other ranks. sinks: as of
  /// attend, may be invalid. Returns the context. Throws UserError for attr window in a ring.
  TensorId attend(TensorId q, TensorId k, TensorId v, TensorId sinks, Attrs attrs);
  /// Adds y = x w^T [+ bias] [+ residual] for w [out,in], of which tp splits the axis `in`, as it
  /// does the columns of x [B,S,in]; y, bias and residual are of own rows.
  TensorId summed_product(std::string_view name, TensorId x, TensorId w, TensorId bias,
                          TensorId residual);
  /// Returns `ids` as rows of this rank's part of the vocabulary, of which `table` has a row each;
  /// -1 for those of other ranks.
  TensorId own_vocabulary(std::string_view name, TensorId ids, TensorId table);
  /// Returns how a parameter is held of which tp splits this axis (Held).
  Held split(int8_t axis, int8_t blocks = 1, int8_t same = 1) const;
  /// Returns how a parameter of experts is held, of which etp splits this axis; -1: none.
  Held experts(int8_t axis = -1, int8_t blocks = 1) const;
  /// Returns how many of `n` of what a rank of a group over tp has; throws UserError naming both
  /// where tp does not divide n.
  int64_t own(std::string_view what, int64_t n) const;
  /// Returns the attributes of a group over tp, and `attrs`.
  Attrs over_tp(Attrs attrs) const;

  /// Adds an op, and returns its id or its first output. Absent inputs at the end may be given as
  /// invalid ids.
  OpId add(std::string_view kind, std::string_view name, std::vector<TensorId> inputs,
           Attrs attrs = {});
  TensorId op(std::string_view kind, std::string_view name, std::vector<TensorId> inputs,
              Attrs attrs = {});
  /// Adds the gate of an MoE layer: one of the layer's losses and of Model::moe_blocks. Throws
  /// UserError outside blocks and for a second gate in a block.
  void add_router(OpId gate, TensorId bias);

  /// Adds the routers' losses and returns the model. Throws UserError if there is no loss, or if no
  /// op reads a parameter or state.
  Model finish();

 private:
  std::string full_name(std::string_view name) const;
  TensorId attend_in_ring(TensorId q, TensorId k, TensorId v, TensorId sinks, Attrs attrs);
  TensorId declare(std::vector<ParamInfo>& list, ParamInfo info, TensorKind kind, DType dtype);
  void check_complete() const;

  Graph& graph_;
  const ModelSpec spec_;
  const GateSpec gate_;
  Grid grid_;
  TensorId ids_, targets_, own_ids_;
  std::vector<ParamInfo> parameters_, states_;
  std::vector<Router> routers_;
  int64_t block_ = -1;
  Segment segment_ = Segment::kEmbed;
};

}  // namespace moe
