#include "engine/model/stages.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/ops.h"

namespace moe {
namespace {

class StageCut {
 public:
  StageCut(const Model& model, const std::vector<int64_t>& layers)
      : model_(model),
        graph_(model.forward),
        producers_(graph_.producers()),
        num_stages_(static_cast<int32_t>(layers.size())) {
    for (size_t s = 0; s < layers.size(); ++s) {
      stage_of_block_.insert(stage_of_block_.end(), static_cast<size_t>(layers[s]),
                             static_cast<int32_t>(s));
    }
    find_stages();
    find_last_readers();
  }

  Model stage(int32_t stage) const {
    Model made(model_, Graph(graph_.table()));
    made.stage = stage;
    made.forward = cut(stage);
    const auto has = [&](const ParamInfo& p) { return made.forward.find_tensor(p.name).valid(); };
    std::copy_if(model_.parameters.begin(), model_.parameters.end(),
                 std::back_inserter(made.parameters), has);
    std::copy_if(model_.states.begin(), model_.states.end(), std::back_inserter(made.states), has);
    std::copy_if(
        model_.moe_blocks.begin(), model_.moe_blocks.end(), std::back_inserter(made.moe_blocks),
        [&](int64_t block) { return stage_of_block_[static_cast<size_t>(block)] == stage; });
    return made;
  }

 private:
  static constexpr int32_t kAll = -1;  // of an op that depends on no parameter
  /// Of an op on tensors of several stages, each on its own (OpDef::alias_each): each stage has one
  /// of its tensors.
  static constexpr int32_t kEach = -2;

  static bool any_of(const std::vector<TensorId>& tensors, const std::vector<bool>& marked) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](TensorId t) { return t.valid() && marked[t.index()]; });
  }
  void find_stages() {
    stage_.assign(graph_.num_ops(), kAll);
    std::vector<bool> trained(graph_.tensors().size());  // depends on a parameter
    for (size_t t = 0; t < trained.size(); ++t) {
      trained[t] = graph_.tensors()[t].kind == TensorKind::kParam;
    }
    std::vector<bool> behind(graph_.tensors().size());  // depends on a block
    const std::vector<bool> before = read_by_blocks();
    for (size_t i = 0; i < graph_.num_ops(); ++i) {
      const Op& op = graph_.ops()[i];
      if (!op.kind.valid()) continue;
      const auto any = [&](const std::vector<bool>& marked) { return any_of(op.inputs, marked); };
      const bool of_block = op.layer >= 0;
      const bool follows = of_block || any(behind);
      if (any(trained) || of_block) {
        stage_[i] = of_block  ? stage_of_block_[static_cast<size_t>(op.layer)]
                    : follows ? stage_behind(op, before)
                              : 0;
      }
      if (graph_.def(op).alias_each && !of_block && op.inputs.size() == op.outputs.size()) {
        stage_[i] = kEach;
      }
      for (const TensorId t : op.outputs) {
        trained[t.index()] = stage_[i] != kAll;
        behind[t.index()] = follows;
      }
    }
  }

  /// Returns, per tensor, whether a block reads it or what follows from it.
  std::vector<bool> read_by_blocks() const {
    std::vector<bool> read(graph_.tensors().size());
    for (size_t i = graph_.num_ops(); i-- > 0;) {
      const Op& op = graph_.ops()[i];
      if (!op.kind.valid() || (op.layer < 0 && !any_of(op.outputs, read))) continue;
      for (const TensorId t : op.inputs) {
        if (t.valid()) read[t.index()] = true;
      }
    }
    return read;
  }

  /// Returns the stage of an op in no block that depends on one: the last stage, but where a block
  /// behind reads its result, as MTP layers do that of the last norm, the stage of what it reads.
  int32_t stage_behind(const Op& op, const std::vector<bool>& read_by_blocks) const {
    if (!any_of(op.outputs, read_by_blocks)) return num_stages_ - 1;
    int32_t stage = 0;
    for (const TensorId t : op.inputs) {
      if (t.valid()) stage = std::max(stage, stage_of(t));
    }
    return stage;
  }

  void find_last_readers() {
    last_reader_.assign(graph_.tensors().size(), kAll);
    for (size_t i = 0; i < graph_.num_ops(); ++i) {
      for (const TensorId t : graph_.ops()[i].inputs) {
        if (!t.valid()) continue;
        const int32_t reader = stage_[i] == kEach ? stage_of(t) : stage_[i];
        last_reader_[t.index()] = std::max(last_reader_[t.index()], reader);
      }
    }
  }

  /// Returns, per op, whether the stage runs it: its own, and those that depend on no parameter
  /// where it reads what they make.
  std::vector<bool> runs_in(int32_t stage) const {
    std::vector<bool> runs(graph_.num_ops()), read(graph_.tensors().size());
    for (size_t i = graph_.num_ops(); i-- > 0;) {
      const Op& op = graph_.ops()[i];
      if (!op.kind.valid()) continue;
      const auto here = [&](TensorId t) { return t.valid() && stage_of(t) == stage; };
      runs[i] = stage_[i] == stage ||
                (stage_[i] == kEach && std::any_of(op.inputs.begin(), op.inputs.end(), here)) ||
                (stage_[i] == kAll && std::any_of(op.outputs.begin(), op.outputs.end(),
                                                  [&](TensorId t) { return read[t.index()]; }));
      if (!runs[i]) continue;
      for (const TensorId t : op.inputs) {
        if (t.valid() && (stage_[i] != kEach || here(t))) read[t.index()] = true;
      }
    }
    return runs;
  }

  /// Returns the ops that a stage runs, with the tensors that are on it.
  std::vector<Op> ops_of(int32_t stage) const {
    const std::vector<bool> runs = runs_in(stage);
    const auto elsewhere = [&](TensorId t) { return stage_of(t) != stage; };
    std::vector<Op> ops;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!runs[i]) continue;
      Op& op = ops.emplace_back(graph_.ops()[i]);
      if (stage_[i] != kEach) continue;
      std::erase_if(op.outputs, elsewhere);
      std::erase_if(op.inputs, elsewhere);
    }
    return ops;
  }

  /// Returns the forward graph of a stage.
  Graph cut(int32_t stage) const {
    Graph to(graph_.table());
    to.name = graph_.name;
    to.num_ranks = graph_.num_ranks;
    std::vector<TensorId> made(graph_.tensors().size());
    const auto handoff = [&](const char* kind, TensorId t, int32_t from, Attrs attrs) {
      const std::string& name = graph_.tensor(t).name;
      attrs.insert(
          {{"what", name}, {"from_stage", int64_t{from}}, {"to_stage", int64_t{from + 1}}});
      const bool sends = from == stage;
      const OpId id = to.add_op(kind, fmt::format("{}.{}", name, kind),
                                sends ? std::vector{made[t.index()]} : std::vector<TensorId>(),
                                std::move(attrs));
      to.op(id).segment = Segment::kHandoff;
      return id;
    };
    for (size_t i = 0; i < made.size(); ++i) {
      const TensorId t(static_cast<int64_t>(i));
      const int32_t from = stage_of(t);
      if (from == kAll || from >= stage || last_reader_[i] < stage) continue;
      made[i] = to.out(handoff("receive", t, stage - 1, like_attrs(graph_.tensor(t))));
    }
    const auto read = [&](TensorId t) {
      TensorId& mine = made[t.index()];
      if (!mine.valid()) {
        MOE_CHECK(!producers_[t.index()].valid(), "stage {} must have or receive tensor '{}'",
                  stage, graph_.tensor(t).name);
        mine = to.add_tensor(graph_.tensor(t));
      }
      return mine;
    };
    for (Op op : ops_of(stage)) {
      for (TensorId& t : op.inputs) {
        if (t.valid()) t = read(t);
      }
      for (TensorId& t : op.outputs) {
        made[t.index()] = to.add_tensor(graph_.tensor(t));
        t = made[t.index()];
      }
      if (op.of.valid()) op.of = made[op.of.index()];
      to.append(std::move(op));
    }
    for (size_t i = 0; i < made.size(); ++i) {
      const TensorId t(static_cast<int64_t>(i));
      const int32_t from = stage_of(t);
      if (from != kAll && from <= stage && last_reader_[i] > stage) handoff("send", t, stage, {});
    }
    return to;
  }

  int32_t stage_of(TensorId t) const {
    const OpId maker = producers_[t.index()];
    if (!maker.valid()) return kAll;
    if (stage_[maker.index()] != kEach) return stage_[maker.index()];
    const Op& op = graph_.op(maker);
    const auto place = std::find(op.outputs.begin(), op.outputs.end(), t) - op.outputs.begin();
    return stage_of(op.inputs[static_cast<size_t>(place)]);
  }

  const Model& model_;
  const Graph& graph_;
  const std::vector<OpId> producers_;
  const int32_t num_stages_;
  std::vector<int32_t> stage_of_block_;
  std::vector<int32_t> stage_;        // indexed by op
  std::vector<int32_t> last_reader_;  // indexed by tensor: the last stage that reads it
};

}  // namespace

std::vector<Model> split_stages(const Model& model, const std::vector<int64_t>& layers) {
  int64_t sum = 0;
  for (const int64_t n : layers) sum += n;
  MOE_CHECK(sum == num_blocks(model), "the stages have {} blocks, but the model has {}", sum,
            num_blocks(model));
  const StageCut cut(model, layers);
  std::vector<Model> stages;
  for (int32_t s = 0; s < static_cast<int32_t>(layers.size()); ++s) stages.push_back(cut.stage(s));
  return stages;
}

int64_t num_blocks(const Model& model) {
  int32_t last = -1;
  for (const Op& op : model.forward.ops()) last = std::max(last, op.layer);
  return last + 1;
}

int64_t num_mtp_layers(const Model& model) {
  const Graph& graph = model.forward;
  return std::count_if(graph.ops().begin(), graph.ops().end(), [&](const Op& op) {
    return op.kind.valid() && graph.def(op).loss == Loss::kMtp;
  });
}

}  // namespace moe
