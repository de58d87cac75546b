#include "engine/model/builder.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"

namespace moe {
namespace {

/// Returns the graph with its inputs and parameters first, so that the numbers of tensors do not
/// depend on which block declares a parameter when.
Graph parameters_first(const Graph& graph) {
  const auto first = [](const Tensor& t) {
    return t.kind == TensorKind::kInput || t.kind == TensorKind::kParam;
  };
  Graph out(graph.table());
  out.name = graph.name;
  out.num_ranks = graph.num_ranks;
  std::vector<TensorId> renamed(graph.tensors().size());
  for (const bool wanted : {true, false}) {
    for (size_t t = 0; t < graph.tensors().size(); ++t) {
      const Tensor& tensor = graph.tensors()[t];
      if (first(tensor) == wanted) renamed[t] = out.add_tensor(tensor);
    }
  }
  const auto rename = [&](std::vector<TensorId>& ids) {
    for (TensorId& id : ids) {
      if (id.valid()) id = renamed[id.index()];
    }
  };
  for (Op op : graph.ops()) {
    rename(op.inputs);
    rename(op.outputs);
    out.append(std::move(op));
  }
  return out;
}

}  // namespace

ModelBuilder::ModelBuilder(Graph& graph, ModelSpec spec, GateSpec gate, int64_t num_ranks)
    : graph_(graph), spec_(std::move(spec)), gate_(std::move(gate)) {
  check(spec_, num_ranks);
  grid_ = spec_.grid(num_ranks);
  check_router_losses(spec_, gate_);
  graph_.name = spec_.name;
  graph_.num_ranks = num_ranks;
  const Shape tokens = {spec_.batch_per_device, spec_.seq};
  ids_ = graph_.add_tensor({"ids", tokens, DType::kI32, TensorKind::kInput});
  targets_ = graph_.add_tensor({"targets", tokens, DType::kI32, TensorKind::kInput});
}

std::string ModelBuilder::full_name(std::string_view name) const {
  return block_ >= 0 ? fmt::format("b{}.{}", block_, name) : std::string(name);
}

TensorId ModelBuilder::declare(std::vector<ParamInfo>& list, ParamInfo info, TensorKind kind,
                               DType dtype) {
  if (graph_.find_tensor(info.name).valid()) {
    throw user_error("model '{}': the parameter or state '{}' is declared twice", spec_.name,
                     info.name);
  }
  Shape shape = info.shape;
  if (shape.empty() || *std::min_element(shape.begin(), shape.end()) < 1) {
    throw user_error(
        "model '{}': the parameter '{}' has the shape {}, but every axis must have a length of at "
        "least 1",
        spec_.name, info.name, shape_text(shape));
  }
  if (info.held.moe) {
    if (shape[0] != spec_.experts) {
      throw user_error(
          "model '{}': the parameter '{}' of experts has the shape {}, but its first axis must be "
          "the {} experts",
          spec_.name, info.name, shape_text(shape), spec_.experts);
    }
    shape[0] /= grid_.size(Axis::kEp);
  }
  if (const Held& held = info.held; held.split >= 0) {
    int64_t& length = shape.at(static_cast<size_t>(held.split));
    const int64_t ranks = cuts(grid_, held);
    if (length % (held.blocks * ranks) != 0) {
      throw user_error(
          "model.{} = {}: axis {} (from 1) of the parameter '{}' {} cannot be divided evenly into "
          "{} parts; give a divisor",
          held.moe ? "etp" : "tp", ranks * held.same, held.split + 1, info.name,
          shape_text(info.shape), held.blocks * ranks);
    }
    length /= ranks;
  }
  const TensorId id = graph_.add_tensor({info.name, std::move(shape), dtype, kind, info.held});
  list.push_back(std::move(info));
  return id;
}

TensorId ModelBuilder::parameter(std::string_view name, const Shape& shape, ParamInfo::Init init,
                                 Held held) {
  return declare(parameters_, {full_name(name), shape, held, init}, TensorKind::kParam,
                 dtype_of(spec_.dtypes.weights, spec_.dtype));
}

TensorId ModelBuilder::state(std::string_view name, const Shape& shape) {
  return declare(states_, {full_name(name), shape, Held(), ParamInfo::Init::kZero},
                 TensorKind::kState, DType::kF32);
}

TensorId ModelBuilder::declared(std::string_view name) const {
  const TensorId id = graph_.find_tensor(name);
  if (id.valid() && graph_.tensor(id).kind == TensorKind::kParam) return id;
  throw user_error("model '{}': no block has declared the parameter '{}'", spec_.name, name);
}

OpId ModelBuilder::add(std::string_view kind, std::string_view name, std::vector<TensorId> inputs,
                       Attrs attrs) {
  while (!inputs.empty() && !inputs.back().valid()) inputs.pop_back();
  const OpId id = graph_.add_op(kind, full_name(name), std::move(inputs), std::move(attrs));
  TensorId query = input_of(graph_, graph_.op(id), Role::kQuery);
  if (kind == ops::kAttnScore.name) query = graph_.op(id).inputs[0];
  if (query.valid() && graph_.tensor(query).shape[1] != spec_.seq / spec_.cp) {
    throw user_error(
        "model.tp = {}: op '{}' ({}) reads {} of the {} tokens of a sequence, which ranks have "
        "between products; give it the rows of all ranks (b:all_rows)",
        spec_.tp, graph_.op(id).name, kind, graph_.tensor(query).shape[1], spec_.seq / spec_.cp);
  }
  if (spec_.cp > 1 && query.valid() && attr_int(graph_.op(id), "context", 1) == 1) {
    throw user_error(
        "model.cp = {}: op '{}' ({}) sees no keys of other ranks; use b:attention, "
        "b:grouped_attention or b:latent_attention, or cp = 1",
        spec_.cp, graph_.op(id).name, kind);
  }
  graph_.op(id).segment = segment_;
  graph_.op(id).layer = static_cast<int32_t>(block_);
  return id;
}

TensorId ModelBuilder::op(std::string_view kind, std::string_view name,
                          std::vector<TensorId> inputs, Attrs attrs) {
  return graph_.out(add(kind, name, std::move(inputs), std::move(attrs)));
}

Held ModelBuilder::experts(int8_t axis, int8_t blocks) const {
  if (spec_.etp == 1) return {.moe = true};
  if (axis < 0) return {.moe = true, .same = static_cast<int8_t>(spec_.etp)};
  return {.moe = true, .split = axis, .blocks = blocks};
}

Held ModelBuilder::split(int8_t axis, int8_t blocks, int8_t same) const {
  if (spec_.tp == 1) return {};
  return {.split = axis, .blocks = blocks, .same = same};
}

int64_t ModelBuilder::own(std::string_view what, int64_t n) const {
  if (n % spec_.tp == 0) return n / spec_.tp;
  throw user_error("model.tp = {}: does not divide the {} {}; give a divisor", spec_.tp, n, what);
}

Attrs ModelBuilder::over_tp(Attrs attrs) const {
  attrs.merge(group_attrs(grid_.over(Axis::kTp), graph_.num_ranks));
  return attrs;
}

TensorId ModelBuilder::all_rows(std::string_view name, TensorId x) {
  return spec_.tp == 1 ? x : op("gather_rows", name, {x}, over_tp({{"axis", int64_t{1}}}));
}

TensorId ModelBuilder::all_columns(std::string_view name, TensorId x) {
  return spec_.tp == 1 ? x : op("gather_rows", name, {x}, over_tp({{"axis", int64_t{2}}}));
}

TensorId ModelBuilder::sum_to_own_rows(std::string_view name, TensorId x) {
  return spec_.tp == 1 ? x : op("scatter_rows", name, {x}, over_tp({{"axis", int64_t{1}}}));
}

TensorId ModelBuilder::own_ids() {
  if (spec_.ranks_per_share() == 1) return ids_;
  if (!own_ids_.valid()) own_ids_ = own_parts("own_ids", ids_, 1, Axis::kTp);
  return own_ids_;
}

TensorId ModelBuilder::ahead(std::string_view name, TensorId tokens, int64_t by, int64_t fill) {
  if (by == 0) return tokens;
  if (by >= spec_.seq) {
    throw user_error("model.seq = {}: MTP layer {} predicts no token of it; give a longer sequence",
                     spec_.seq, by);
  }
  // In no block, as in own_parts().
  return graph_.out(
      graph_.add_op("tokens_ahead", std::string(name), {tokens}, {{"by", by}, {"fill", fill}}));
}

TensorId ModelBuilder::own_parts(std::string_view name, TensorId x, int64_t axis, Axis from,
                                 Axis to) {
  const Group group = grid_.over(from, to);
  if (group.size == 1) return x;
  Attrs attrs = group_attrs(group, graph_.num_ranks);
  attrs["axis"] = axis;
  if (spec_.cp > 1 && to == Axis::kCp) attrs["context"] = spec_.cp;
  // What depends on no parameter is in no block, so that all stages of a pipeline may have it.
  if (axis == 2) return op("own_rows", name, {x}, std::move(attrs));
  return graph_.out(graph_.add_op("own_rows", std::string(name), {x}, std::move(attrs)));
}

TensorId ModelBuilder::attend(TensorId q, TensorId k, TensorId v, TensorId sinks, Attrs attrs) {
  if (spec_.cp > 1) {
    attrs.merge(group_attrs(grid_.over(Axis::kCp), graph_.num_ranks));
    attrs["context"] = spec_.cp;
    if (spec_.cp_comm == ContextExchange::kP2p) return attend_in_ring(q, k, v, sinks, attrs);
    Attrs gathered = group_attrs(grid_.over(Axis::kCp), graph_.num_ranks);
    gathered.insert({{"axis", int64_t{1}}, {"context", spec_.cp}});
    k = op("gather_rows", "attn.k_parts", {k}, gathered);
    v = op("gather_rows", "attn.v_parts", {v}, gathered);
  }
  return op("attend", "attn.core", {q, k, v, sinks}, std::move(attrs));
}

TensorId ModelBuilder::attend_in_ring(TensorId q, TensorId k, TensorId v, TensorId sinks,
                                      Attrs attrs) {
  if (attrs.contains("window")) {
    throw user_error(
        "model.cp_comm = 'p2p': block {} has attention with a window, whose keys are on few ranks; "
        "use 'all_gather'",
        block_ + 1);
  }
  std::vector<TensorId> all = {q, k, v, sinks};
  for (int64_t step = 0; step < spec_.cp; ++step) {
    const std::string number = std::to_string(step);
    OpId next;  // posted before the step, so that it goes on beside it
    if (step + 1 < spec_.cp) {
      next = add("shift_rows", "attn.kv_shift" + number, {k, v},
                 group_attrs(grid_.over(Axis::kCp), graph_.num_ranks));
    }
    Attrs of_step = attrs;
    of_step["step"] = step;
    const OpId part = add("attend_step", "attn.step" + number,
                          {q, k, v, step == 0 ? sinks : TensorId()}, std::move(of_step));
    all.insert(all.end(), {graph_.out(part), graph_.out(part, 1)});
    if (next.valid()) k = graph_.out(next), v = graph_.out(next, 1);
  }
  return op("join_steps", "attn.core", std::move(all), std::move(attrs));
}

TensorId ModelBuilder::own_vocabulary(std::string_view name, TensorId ids, TensorId table) {
  return op("own_vocabulary", name, {ids}, over_tp({{"vocab", graph_.tensor(table).shape[0]}}));
}

TensorId ModelBuilder::summed_product(std::string_view name, TensorId x, TensorId w, TensorId bias,
                                      TensorId residual) {
  if (spec_.tp == 1) return op("linear", name, {x, w, bias, residual});
  const std::string base(name);
  const TensorId y = sum_to_own_rows(base + ".sum", op("linear", name, {x, w}));
  if (!bias.valid()) return residual.valid() ? op("add", base + ".add", {y, residual}) : y;
  return op("add_rows", base + ".add", {y, bias, residual});
}

void ModelBuilder::add_router(OpId gate, TensorId bias) {
  if (block_ < 0 || (!routers_.empty() && routers_.back().block >= block_)) {
    throw user_error(
        "model '{}': op '{}': a gate must be in a block, each in a block of its own, in ascending "
        "order",
        spec_.name, graph_.op(gate).name);
  }
  routers_.push_back({block_, gate, bias});
}

void ModelBuilder::check_complete() const {
  std::vector<bool> read(graph_.tensors().size(), false);
  for (const Op& op : graph_.ops()) {
    for (const TensorId t : op.inputs) {
      if (t.valid()) read[t.index()] = true;
    }
  }
  for (size_t t = 0; t < read.size(); ++t) {
    const Tensor& tensor = graph_.tensors()[t];
    const bool kept = tensor.kind == TensorKind::kParam || tensor.kind == TensorKind::kState;
    if (kept && !read[t]) {
      throw user_error("model '{}': no op reads the {} '{}'", spec_.name,
                       tensor.kind == TensorKind::kParam ? "parameter" : "state", tensor.name);
    }
  }
}

Model ModelBuilder::finish() {
  loss_of(graph_);
  add_router_losses(graph_, spec_, gate_, routers_);
  check_complete();
  Model model(spec_, parameters_first(graph_));
  model.parameters = parameters_;
  model.states = states_;
  for (const Router& router : routers_) model.moe_blocks.push_back(router.block);
  return model;
}

}  // namespace moe
