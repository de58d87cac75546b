#include "engine/graph/op_def.h"

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace moe {

OpKind OpTable::kind(std::string_view name) const {
  for (size_t i = 0; i < defs_.size(); ++i) {
    if (name == defs_[i]->name) return OpKind(static_cast<int64_t>(i));
  }
  std::vector<std::string> names;
  for (const OpDef* def : defs_) names.emplace_back(def->name);
  throw UserError(unknown_name("op", name, std::move(names)));
}

std::vector<std::pair<int, int>> alias_pairs(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  std::vector<std::pair<int, int>> pairs = def.may_alias;
  if (def.alias_each) {
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      pairs.emplace_back(static_cast<int>(i), static_cast<int>(i));
    }
  }
  std::erase_if(pairs, [&op](const std::pair<int, int>& pair) {
    const auto out = static_cast<size_t>(pair.first), in = static_cast<size_t>(pair.second);
    return out >= op.outputs.size() || in >= op.inputs.size() || !op.inputs[in].valid();
  });
  return pairs;
}

std::vector<int> mutated_inputs(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  std::vector<int> inputs;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const int input = static_cast<int>(i);
    const bool listed =
        std::find(def.mutates.begin(), def.mutates.end(), input) != def.mutates.end();
    const bool behind = def.mutates_from >= 0 && input >= def.mutates_from;
    if (op.inputs[i].valid() && (listed || behind)) inputs.push_back(input);
  }
  return inputs;
}

bool runs_on_host(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  return def.on_host != nullptr && def.on_host(graph, op);
}

bool stores_bf16(const Graph& graph, const Op& op) {
  const auto narrow = [&](TensorId t) {
    return t.valid() && graph.tensor(t).dtype == DType::kBF16;
  };
  return std::any_of(op.inputs.begin(), op.inputs.end(), narrow) ||
         std::any_of(op.outputs.begin(), op.outputs.end(), narrow);
}

std::vector<TensorId> host_inputs(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  std::vector<TensorId> tensors;
  if (runs_on_host(graph, op)) {
    tensors = op.inputs;
  } else if (def.host_inputs != nullptr) {
    for (const size_t i : def.host_inputs(op)) {
      if (i < op.inputs.size()) tensors.push_back(op.inputs[i]);
    }
  }
  std::erase(tensors, TensorId());
  return tensors;
}

std::vector<Piece> pieces(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  return def.pieces == nullptr ? std::vector<Piece>() : def.pieces(graph, op);
}

bool is_view(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  return def.view != nullptr && def.view(op);
}

std::string output_name(const std::string& op, size_t i) {
  return i == 0 ? op : fmt::format("{}:{}", op, i);
}

TensorKind usual_tensor_kind(Phase phase) {
  return phase == Phase::kBackward ? TensorKind::kGradient : TensorKind::kActivation;
}

Group group_of(const Graph& graph, const Op& op) {
  const Group given = {attr_int(op, "group", 0), attr_int(op, "stride", 1)};
  return resolve(given, graph.num_ranks, fmt::format("op '{}'", op.name));
}

Round round_of(const Graph& graph, const Op& op) {
  const Round round = {attr_int(op, "round", 0), attr_int(op, "rounds", 1)};
  check(round, group_of(graph, op), fmt::format("op '{}'", op.name));
  return attr_string(op, "to") == "source" ? round.reversed() : round;
}

Attrs group_attrs(const Group& group, int64_t num_ranks) {
  Attrs attrs;
  if (group.size != num_ranks) attrs["group"] = group.size;
  if (group.stride != 1) attrs["stride"] = group.stride;
  return attrs;
}

void check_inputs(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  const auto count = static_cast<int>(op.inputs.size());
  if (count < def.min_inputs || count > def.max_inputs) {
    throw user_error("op '{}': {} takes {} to {} inputs, not {}", op.name, def.name, def.min_inputs,
                     def.max_inputs, count);
  }
  for (int i = 0; i < count; ++i) {
    const TensorId t = op.inputs[static_cast<size_t>(i)];
    if (t.valid() ? t.index() >= graph.tensors().size() : i < def.min_inputs) {
      throw user_error("op '{}': input {} of {} is {}", op.name, i, def.name,
                       t.valid() ? "not a tensor of this graph" : "required");
    }
  }
}

}  // namespace moe
