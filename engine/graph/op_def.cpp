#include "engine/graph/op_def.h"

#include <algorithm>
#include <set>

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

const OpDef& OpTable::basic(BasicOp which) const {
  const auto found = std::find_if(defs_.begin(), defs_.end(),
                                  [&](const OpDef* def) { return def->basic == which; });
  MOE_CHECK(found != defs_.end(),
            "the table of ops must have an op with OpDef::basic == BasicOp number {}, but has none",
            static_cast<int>(which));
  return **found;
}

std::vector<std::pair<int, int>> alias_pairs(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  std::vector<std::pair<int, int>> pairs = def.may_alias;
  if (def.alias_each && op.outputs.size() <= op.inputs.size()) {
    const size_t before = op.inputs.size() - op.outputs.size();
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      pairs.emplace_back(static_cast<int>(i), static_cast<int>(before + i));
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
  return resolve(op.rows.group, graph.num_ranks, fmt::format("op '{}'", op.name));
}

Round round_of(const Graph& graph, const Op& op) {
  const Round& round = op.rows.round;
  check(round, group_of(graph, op), fmt::format("op '{}'", op.name));
  return op.rows.to == RowUse::To::kSource ? round.reversed() : round;
}

Attrs group_attrs(const Group& group, int64_t num_ranks) {
  Attrs attrs;
  if (group.size != num_ranks) attrs["group"] = group.size;
  if (group.stride != 1) attrs["stride"] = group.stride;
  return attrs;
}

bool is(const Graph& graph, OpId op, MoeOp which) {
  return !graph.removed(op) && graph.def(op).moe == which;
}

bool is(const Graph& graph, OpId op, BasicOp which) {
  return !graph.removed(op) && graph.def(op).basic == which;
}

bool carries(const Graph& graph, OpId op, Payload which) {
  return !graph.removed(op) && graph.def(op).payload == which;
}

std::optional<size_t> place_of(const std::vector<Operand>& operands, Role role) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].role == role) return i;
  }
  return std::nullopt;
}

TensorId input_of(const Graph& graph, const Op& op, Role role) {
  const auto at = place_of(graph.def(op).inputs, role);
  return at && *at < op.inputs.size() ? op.inputs[*at] : TensorId();
}

TensorId output_of(const Graph& graph, const Op& op, Role role) {
  const auto at = place_of(graph.def(op).outputs, role);
  return at && *at < op.outputs.size() ? op.outputs[*at] : TensorId();
}

void set_input(Graph& graph, OpId id, Role role, TensorId tensor) {
  Op& op = graph.op(id);
  const auto at = place_of(graph.def(op).inputs, role);
  MOE_CHECK(at.has_value(),
            "op '{}': kind {} must declare an input of role number {}, but has none", op.name,
            graph.def(op).name, static_cast<int>(role));
  op.inputs.resize(std::max(op.inputs.size(), *at + 1));
  op.inputs[*at] = tensor;
  while (!op.inputs.back().valid()) op.inputs.pop_back();
}

namespace {

/// Whether the op has this operand, by Operand::with and the op's attributes.
bool is_there(const Operand& operand, const Op& op) {
  return operand.with == nullptr || attr_int(op, operand.with) != 0;
}

void check_operands(const OpDef& def, const char* what, const std::vector<Operand>& operands) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    MOE_CHECK(operand.name != nullptr && names.insert(operand.name).second,
              "op {}: {} {} must have a name that no earlier {} has", def.name, what, i, what);
    MOE_CHECK(operand.most >= 1 && (operand.most == 1 || i + 1 == operands.size()),
              "op {}: {} '{}' has Operand::most = {}, but only the last {} may be a list (above 1)",
              def.name, what, operand.name, operand.most, what);
    MOE_CHECK(&operands == &def.inputs || operand.optional || i == 0 || !operands[i - 1].optional ||
                  operands[i - 1].with != nullptr,
              "op {}: {} '{}' is required, so the {} before it must not be optional", def.name,
              what, operand.name, what);
  }
}

void check_numbers(const OpDef& def, const char* what, const std::vector<Operand>& operands,
                   const char* field, const std::vector<int>& numbers) {
  for (const int i : numbers) {
    const bool more = !operands.empty() && operands.back().most > 1;
    MOE_CHECK(i >= 0 && (more || static_cast<size_t>(i) < operands.size()),
              "op {}: {} names {} {}, which is not declared", def.name, field, what, i);
  }
}

}  // namespace

const Operand* input_operand(const OpDef& def, const Op& op, size_t i) {
  size_t place = 0;
  for (const Operand& operand : def.inputs) {
    // The last operand is counted even if its attribute (Operand::with) is absent; the shape rule
    // checks whether it may be given.
    const bool there = &operand == &def.inputs.back() || is_there(operand, op);
    const auto most = static_cast<size_t>(there ? operand.most : 0);
    if (i < place + most) return &operand;
    place += most;
  }
  return nullptr;
}

void check_inputs(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  size_t fewest = 0, most = 0;
  for (const Operand& operand : def.inputs) {
    if (&operand != &def.inputs.back() && !is_there(operand, op)) continue;
    if (!operand.optional) fewest = most + 1;
    most += static_cast<size_t>(operand.most);
  }
  if (op.inputs.size() < fewest || op.inputs.size() > most) {
    throw user_error("op '{}' ({}) has {} inputs, allowed: {} to {}", op.name, def.name,
                     op.inputs.size(), fewest, most);
  }
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Operand* const operand = input_operand(def, op, i);
    const TensorId t = op.inputs[i];
    const auto refuse = [&](std::string_view why) {
      return user_error("op '{}': input {} of {}{} {}", op.name, i, def.name,
                        operand == nullptr ? "" : fmt::format(" ({})", operand->name), why);
    };
    if (operand == nullptr) throw refuse("is one more than the op can have");
    if (!t.valid()) {
      if (operand->optional) continue;
      throw refuse("is absent, but required");
    }
    if (t.index() >= graph.tensors().size()) throw refuse("is not a tensor of this graph");
  }
}

void check_made(const Graph& graph, const Op& op, size_t num_outputs) {
  const OpDef& def = graph.def(op);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.inputs[i].valid() || graph.tensor(op.inputs[i]).dtype != DType::kI32) continue;
    const Operand& operand = *input_operand(def, op, i);
    MOE_CHECK(operand.role == Role::kAny || is_index(operand.role),
              "op {}: input {} ({}) has integers, so its role must be one of integers or kAny",
              def.name, i, operand.name);
  }
  size_t fewest = 0, most = 0;
  for (const Operand& operand : def.outputs) {
    if (!is_there(operand, op)) continue;
    if (!operand.optional || operand.with != nullptr) ++fewest;
    most += static_cast<size_t>(operand.most);
  }
  MOE_CHECK(num_outputs >= fewest && num_outputs <= most,
            "op {}: the shape rule must return {} to {} outputs, as declared, but returns {}",
            def.name, fewest, most, num_outputs);
}

void no_gradient(GradContext&, OpId op) {
  MOE_CHECK(false, "no gradient flows through op {}", op.index());
}

void check_declared(const OpTable& table) {
  std::set<std::string_view> names;
  std::string_view before;
  for (const OpDef* const each : table.defs()) {
    const OpDef& def = *each;
    MOE_CHECK(def.name != nullptr, "an op of the table, {}, has no name",
              each == table.defs()[0] ? "the first" : fmt::format("that after {}", before));
    before = def.name;
    MOE_CHECK(def.doc != nullptr, "op {}: it has no doc", def.name);
    MOE_CHECK(names.insert(def.name).second,
              "op {}: the name must be unique in the table, but two ops have it", def.name);
    MOE_CHECK(!def.inputs.empty(), "op {}: at least one input must be declared, but there is none",
              def.name);
    MOE_CHECK(def.infer != nullptr && def.work != nullptr,
              "op {}: functions infer and work must both be given", def.name);
    MOE_CHECK(def.gradient != nullptr,
              "op {}: it has no gradient rule; give no_gradient if no gradient flows through it",
              def.name);
    const bool moves = def.collective != Collective::kNone;
    MOE_CHECK(
        moves == (def.lane == LaneKind::kComm) && moves == (def.payload != Payload::kNone),
        "op {}: lane kComm, a collective and a payload must be declared together or not at all",
        def.name);
    MOE_CHECK(moves || (def.run.f32 != nullptr && def.run.f64 != nullptr),
              "op {}: kernels run.f32 and run.f64 must both be given", def.name);
    MOE_CHECK(def.loss == Loss::kNone || !def.outputs.empty(),
              "op {}: it has a loss, so output 0 must be declared", def.name);
    check_operands(def, "input", def.inputs);
    check_operands(def, "output", def.outputs);
    std::vector<int> in = def.mutates, out = def.partly_written;
    in.insert(in.end(), def.rounds.begin(), def.rounds.end());
    for (const auto& [output, input] : def.may_alias) {
      out.push_back(output);
      in.push_back(input);
    }
    for (const BeginInput& begin : def.begins) {
      in.push_back(begin.input);
      if (begin.of_input >= 0) in.push_back(begin.of_input);
      if (begin.of_output >= 0) out.push_back(begin.of_output);
    }
    check_numbers(def, "input", def.inputs, "mutates, rounds, may_alias or begins", in);
    check_numbers(def, "output", def.outputs, "partly_written, may_alias or begins", out);
  }
}

}  // namespace moe
