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
  TensorId declare(std::vector<ParamInfo>& list, ParamInfo info, TensorKind kind, DType dtype);
  void check_complete() const;

  Graph& graph_;
  const ModelSpec spec_;
  const GateSpec gate_;
  Grid grid_;
  TensorId ids_, targets_;
  std::vector<ParamInfo> parameters_, states_;
  std::vector<Router> routers_;
  int64_t block_ = -1;
  Segment segment_ = Segment::kEmbed;
};

}  // namespace moe
