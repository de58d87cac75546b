#include "engine/model/routers.h"

#include <map>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

// Indices of outputs of a gate op.
constexpr size_t kExpert = 2, kChoiceSlot = 3;

class RouterBuilder {
 public:
  RouterBuilder(Graph& graph, const ModelSpec& model, const GateSpec& gate,
                const std::vector<Router>& routers)
      : graph_(graph), model_(model), gate_(gate), routers_(routers) {}

  void run() {
    const BalanceLossSpec& balance = model_.balance_loss;
    const bool loss = balance.coefficient > 0, bias = model_.bias_balance.rate > 0;
    const bool over_all = loss && is_over_all();
    for (const Router& r : routers_) {
      if (loss) add_load(r, balance.count);
      if (bias) add_load(r, Count::kChoices);
    }
    if (graph_.num_ranks > 1 && bias) {
      all_reduce(sum_, Count::kChoices, over_all && balance.count == Count::kChoices);
    }
    if (graph_.num_ranks > 1 && over_all) all_reduce(sum_, balance.count, true);
    if (loss && !over_all && model_.ranks_per_share() > 1) {
      all_reduce(
          of_sequences_, balance.count, true, "moe.own_counts.all_reduce",
          group_attrs(model_.grid(graph_.num_ranks).over(Axis::kTp, Axis::kCp), graph_.num_ranks));
    }
    for (const Router& r : routers_) {
      if (loss) add_balance_loss(r);
      if (model_.z_loss > 0) {
        add(r, "z_loss", "z_loss", {logits(r)},
            {{"scale", model_.z_loss / model_.tokens_per_step(graph_.num_ranks)}});
      }
      if (bias) {
        const TensorId load = sum_of(sum_, {r.block, Count::kChoices});
        const OpId id = add(r, "balance_bias", "balance_bias", {r.bias, load},
                            {{"rate", model_.bias_balance.rate}});
        graph_.op(id).phase = Phase::kUpdate;
        graph_.op(id).segment = Segment::kUpdate;
      }
    }
  }

 private:
  using Count = BalanceLossSpec::Count;
  /// The block, and which choices are counted.
  using Key = std::pair<int64_t, Count>;

  bool is_over_all() const { return model_.balance_loss.over == BalanceLossSpec::Over::kAll; }

  OpId add(const Router& r, const char* kind, const std::string& name, std::vector<TensorId> inputs,
           Attrs attrs) {
    const OpId id =
        graph_.add_op(kind, fmt::format("b{}.moe.{}", r.block, name), std::move(inputs), attrs);
    graph_.op(id).segment = Segment::kGate;
    graph_.op(id).layer = static_cast<int32_t>(r.block);
    return id;
  }

  TensorId logits(const Router& r) const { return graph_.op(r.gate).inputs[0]; }

  /// Number of tokens of the sequences of a rank, or of all ranks.
  double tokens(bool all) const {
    return static_cast<double>(model_.tokens_per_rank()) *
           static_cast<double>(all ? graph_.num_ranks : model_.ranks_per_share());
  }

  void add_load(const Router& r, Count count) {
    if (load_.contains({r.block, count})) return;
    const bool kept = count == Count::kKept;
    Attrs attrs = {{"experts", model_.experts}, {"capacity", kept ? gate_.capacity : int64_t{1}}};
    if (count == Count::kFirst) attrs["first"] = int64_t{1};
    const std::string name =
        count == Count::kChoices ? "load" : fmt::format("load_{}", name_of(count));
    const OpId id =
        add(r, "expert_load", name, {graph_.out(r.gate, kept ? kChoiceSlot : kExpert)}, attrs);
    load_[{r.block, count}] = graph_.out(id);
  }

  /// Adds one all-reduce of the counts of all MoE layers, in phase forward (`forward`) or update.
  /// group: its attributes; none: over all ranks.
  void all_reduce(std::map<Key, TensorId>& sums, Count count, bool forward,
                  const char* name = nullptr, const Attrs& group = {}) {
    if (sums.contains({routers_[0].block, count})) return;
    std::vector<TensorId> inputs;
    for (const Router& r : routers_) inputs.push_back(load_.at({r.block, count}));
    if (name == nullptr) {
      name = count == Count::kChoices ? "moe.load.all_reduce" : "moe.counts.all_reduce";
    }
    const OpId id = graph_.add_op("all_reduce", name, inputs, group,
                                  forward ? Phase::kForward : Phase::kUpdate);
    graph_.op(id).segment = forward ? Segment::kGate : Segment::kUpdate;
    for (size_t i = 0; i < routers_.size(); ++i) {
      sums[{routers_[i].block, count}] = graph_.out(id, i);
    }
  }

  TensorId sum_of(const std::map<Key, TensorId>& sums, const Key& key) const {
    return sums.contains(key) ? sums.at(key) : load_.at(key);
  }

  /// The op balance_loss multiplies the counts by the sum over tokens of the scores; its attribute
  /// `scale` turns the counts into f and the sum into P (BalanceLossSpec). The values of all ranks
  /// and micro-batches add up to the total loss, the mean of those of the micro-batches.
  void add_balance_loss(const Router& r) {
    const BalanceLossSpec& balance = model_.balance_loss;
    const double choices =
        tokens(is_over_all()) * static_cast<double>(balance.count == Count::kFirst ? 1 : gate_.k);
    const double scale = balance.coefficient * static_cast<double>(model_.experts) / choices /
                         model_.tokens_per_step(graph_.num_ranks);
    const Key key = {r.block, balance.count};
    const TensorId load = sum_of(is_over_all() ? sum_ : of_sequences_, key);
    add(r, "balance_loss", "balance_loss", {logits(r), load},
        {{"scale", scale}, {"scores", gate_.scores}});
  }

  Graph& graph_;
  const ModelSpec& model_;
  const GateSpec& gate_;
  const std::vector<Router>& routers_;
  std::map<Key, TensorId> load_, sum_;    // load of this rank; sum over all ranks
  std::map<Key, TensorId> of_sequences_;  // sum over the ranks that share sequences
};

}  // namespace

void check_router_losses(const ModelSpec& model, const GateSpec& gate) {
  const auto refuse = [&gate](const char* field, const char* why) {
    throw user_error("model.{}: the gate '{}' {}; omit this field", field, gate.name, why);
  };
  const bool by_token = gate.chooser == Chooser::kToken;
  const char* why =
      gate.chooser == Chooser::kExpert
          ? "lets experts choose tokens, so that every expert gets the same number of rows"
          : "does not choose experts by their scores";
  if (model.balance_loss.coefficient > 0 && !by_token) refuse("balance_loss", why);
  if (model.bias_balance.rate > 0 && !by_token) refuse("bias_balance", why);
  if (model.z_loss > 0 && gate.chooser == Chooser::kRule) refuse("z_loss", why);
}

void add_router_losses(Graph& graph, const ModelSpec& model, const GateSpec& gate,
                       const std::vector<Router>& routers) {
  if (!routers.empty()) RouterBuilder(graph, model, gate, routers).run();
}

}  // namespace moe
