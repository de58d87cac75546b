// Model: what a recipe declares of a model and what building it leaves: the forward graph, the
// parameters and the states. A model is built by builder.h from the blocks in blocks/; nothing here
// or elsewhere in the engine knows an architecture. Gates are in routing/, the ops in ops/.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/field.h"
#include "engine/base/group.h"
#include "engine/graph/graph.h"
#include "engine/routing/gate.h"
#include "engine/routing/routing_model.h"

namespace moe {

struct GateUse;

/// The auxiliary loss of the Switch Transformer (Fedus et al. 2021, equations 4 to 6), for each MoE
/// layer: coefficient * E * sum over experts e of f[e] * P[e]. P[e] is the mean over tokens of the
/// router's scores (softmax scores, or sigmoid scores divided by their sum over experts), and f[e]
/// the fraction of choices that fall on expert e. No gradient flows through f.
struct BalanceLossSpec {
  double coefficient = 0;  // 0 means no balance loss
  /// Which choices f counts. first: each token's first choice, before drops (GShard, DeepSpeed).
  /// choices: all k choices, before drops, divided by k (Megatron). kept: choices with a slot,
  /// divided by k.
  enum class Count : uint8_t { kFirst, kChoices, kKept } count = Count::kChoices;
  /// rank: f and P are of each rank's own tokens, and the loss is the mean over ranks, so it
  /// depends on how tokens are distributed. all: f and P are of all ranks' tokens (one all-reduce
  /// of counts). In a step of several micro-batches, of one micro-batch's; the loss is the mean.
  enum class Over : uint8_t { kRank, kAll } over = Over::kRank;
};
constexpr std::array<const char*, 3> names_of(BalanceLossSpec::Count) {
  return {"first", "choices", "kept"};
}
constexpr std::array<const char*, 2> names_of(BalanceLossSpec::Over) {
  return {"rank", "all"};
}
constexpr auto fields_of(const BalanceLossSpec*) {
  return field_table<BalanceLossSpec>(
      field("coefficient", &BalanceLossSpec::coefficient,
            "factor of E * sum of f[e] * P[e] in the loss, for each MoE layer")
          .from(0, 1e6)
          .must(),
      field("count", &BalanceLossSpec::count,
            "choices of which f[e] is expert e's share: the tokens' first choices, all k choices "
            "before drops, or those that got a slot"),
      field("over", &BalanceLossSpec::over,
            "tokens over which f and P are taken: each rank's own, or those of all ranks (one "
            "all-reduce of counts per layer)"));
}

/// Balancing without a loss (Wang et al. 2024): each expert has a bias that is added to its scores
/// for the choice, but not for the weights. After each step `rate` is added to the bias of an
/// expert with fewer choices (of all ranks, before drops) than the mean, and subtracted from that
/// of one with more.
struct BiasBalanceSpec {
  double rate = 0;  // 0 means no bias
};
constexpr auto fields_of(const BiasBalanceSpec*) {
  return field_table<BiasBalanceSpec>(
      field("rate", &BiasBalanceSpec::rate, "by how much an expert's bias changes in a step")
          .from(0, 1));
}

/// How scores become choices and weights.
struct RouterSpec {
  /// As in GateSpec, for gates that take a token's k best experts. The empty name: as the gate.
  enum class Scores : uint8_t { kAsGate, kSoftmax, kSigmoid } scores = Scores::kAsGate;
  enum class Weight : uint8_t { kAsGate, kProb, kRenorm, kOne } weight = Weight::kAsGate;
  double scale = 1;
  ExpertGroups groups;
};
constexpr std::array<const char*, 3> names_of(RouterSpec::Scores) {
  return {"", "softmax", "sigmoid"};
}
constexpr std::array<const char*, 4> names_of(RouterSpec::Weight) {
  return {"", "prob", "renorm", "one"};
}
constexpr auto fields_of(const RouterSpec*) {
  return field_table<RouterSpec>(
      field("scores", &RouterSpec::scores,
            "the function that turns a token's router logits into scores"),
      field("weight", &RouterSpec::weight,
            "weight of an expert's output: its score, the score divided by the sum of the chosen "
            "experts' scores (softmax after the choice), or 1"),
      field("scale", &RouterSpec::scale, "factor of the weights").from(0, 1e6),
      inlined("", &RouterSpec::groups));
}

/// What every model declares, whatever its architecture. Recipes write these fields, some in other
/// ways (scripts/moe/spec/model.lua).
/// The type of some numbers of a step. kPlain: that of a model in one type, wide_dtype() of its
/// activations.
enum class NumberType : uint8_t { kPlain, kF16, kBF16, kF32 };
constexpr std::array<const char*, 4> names_of(NumberType) {
  return {"plain", "f16", "bf16", "f32"};
}

/// The type in which linears and experts are multiplied, forward and gradients; weights' gradients
/// are summed in their own type. kPlain: that of the activations. kFp8: fp8 with one scale per
/// tensor. kFp8Block: with one per 128 numbers of a row, and per 128 x 128 of a weight (DeepSeek).
enum class ProductType : uint8_t { kPlain, kFp8, kFp8Block };
constexpr std::array<const char*, 3> names_of(ProductType) {
  return {"plain", "fp8", "fp8_block"};
}

/// The types of what a parameter brings with it, beside ModelSpec::dtype of the activations.
struct NumberTypes {
  NumberType weights = NumberType::kPlain;
  NumberType gradients = NumberType::kPlain;   // as they are made, summed over ranks and kept
  NumberType moments = NumberType::kPlain;     // the optimizer's states
  bool master = false;                         // whether the updates have a copy of weights in f32
  ProductType products = ProductType::kPlain;  // of times alone: tensors stay as they are
};
constexpr auto fields_of(const NumberTypes*) {
  return field_table<NumberTypes>(
      field("weights", &NumberTypes::weights, "type of parameters"),
      field("gradients", &NumberTypes::gradients,
            "type of the gradients of parameters, as they are made, summed over ranks and kept"),
      field("moments", &NumberTypes::moments, "type of the optimizer's states"),
      field("master", &NumberTypes::master,
            "whether the optimizer keeps a copy of the parameters in f32"),
      field("products", &NumberTypes::products,
            "type in which linears and experts are multiplied, not router, head and attention; "
            "fp8: one scale per tensor; fp8_block: per block of 128; simulated only"));
}
/// Returns the type that `type` stands for in a model with activations of type `activations`.
DType dtype_of(NumberType type, DType activations);

/// How ranks over cp get keys and values of other parts of sequences: kAllGather: all before
/// attention begins; kP2p: in a ring, a rank's after the other, each beside attention to those that
/// are there (Liu et al. 2023, arXiv 2310.01889).
enum class ContextExchange : uint8_t { kAllGather, kP2p };
constexpr std::array<const char*, 2> names_of(ContextExchange) {
  return {"all_gather", "p2p"};
}

/// Whose tokens fill an expert's slots together: kRank: those of each rank; kSequence: those of the
/// ranks over tp and cp that share sequences, in the order of the sequences. kByGate: kSequence for
/// a gate that needs the whole batch for its choices, kRank for others.
enum class RouteOver : uint8_t { kByGate, kRank, kSequence };
constexpr std::array<const char*, 3> names_of(RouteOver) {
  return {"", "rank", "sequence"};
}

struct ModelSpec {
  std::string name = "model";
  int64_t vocab = 50257;
  int64_t seq = 512;
  int64_t batch_per_device = 1;
  int64_t experts = 4;  // a multiple of the ranks per expert-parallel group
  int64_t ep = 0;       // 0 means all ranks, over etp
  int64_t tp = 1;       // a divisor of the ranks
  int64_t cp = 1;       // a divisor of the ranks over tp
  int64_t etp = 1;      // a divisor of the ranks over ep
  ContextExchange cp_comm = ContextExchange::kAllGather;
  RouteOver route_over = RouteOver::kByGate;
  std::string gate = "switch";
  int64_t k = 1;
  double capacity_factor = 1.25;
  double rows_bound = 4;  // rows are packed as ops/stored_rows.h says
  RouterSpec router;
  BalanceLossSpec balance_loss;
  double z_loss = 0;  // ST-MoE, Zoph et al. 2022, equation 5
  BiasBalanceSpec bias_balance;
  // Type of activations, and by wide_dtype() of what dtypes leaves plain.
  DType dtype = DType::kF32;
  NumberTypes dtypes;
  /// Micro-batches of a step, of batch_per_device sequences per device each, whose gradients are
  /// added up.
  int64_t micro_batches = 1;

  /// The ranks that share sequences.
  int64_t ranks_per_share() const { return tp * cp; }
  /// Tokens of a micro-batch of which each rank has the rows between products, and routes them.
  int64_t tokens_per_rank() const { return batch_per_device * seq / ranks_per_share(); }
  /// Tokens of a step on all ranks, whose losses are averaged.
  double tokens_per_step(int64_t num_ranks) const {
    return static_cast<double>(tokens_per_rank()) * static_cast<double>(num_ranks * micro_batches);
  }
  /// Returns the grid of the ranks. The ranks of a group over Axis::kEp hold all experts
  /// together. Requires: `num_ranks` is a multiple of ep * etp and of tp * cp.
  Grid grid(int64_t num_ranks) const {
    const int64_t group = ep > 0 ? ep : num_ranks / etp;
    return {{tp, cp, shares(num_ranks), etp, group, num_ranks / (group * etp)}};
  }
  /// Returns the number of ranks with sequences of their own.
  int64_t shares(int64_t num_ranks) const { return num_ranks / ranks_per_share(); }
};
constexpr auto fields_of(const ModelSpec*) {
  return field_table<ModelSpec>(
      field("name", &ModelSpec::name, "the model's name in results"),
      field("vocab", &ModelSpec::vocab, "size of the vocabulary").from(2, 1e7),
      field("seq", &ModelSpec::seq, "tokens per sequence").from(1, 1e7).must(),
      field("batch_per_device", &ModelSpec::batch_per_device,
            "sequences per device, in each micro-batch of a step; ranks of a group over tp and cp "
            "share theirs")
          .from(1, 1e7),
      field("experts", &ModelSpec::experts, "number of experts of a layer").from(1, 1e6),
      field("ep", &ModelSpec::ep,
            "size of an expert-parallel group, which holds every expert once; default: all devices")
          .from(1, 1e6),
      field("etp", &ModelSpec::etp,
            "ranks over which products of experts are split along their inner width; they get all "
            "rows of their experts; default: 1")
          .from(1, 1e4),
      field("tp", &ModelSpec::tp,
            "ranks over which products of attention and dense layers are split, and between them "
            "the rows of a sequence; default: 1")
          .from(1, 1e4),
      field("cp", &ModelSpec::cp,
            "ranks over which sequences are split, also in attention, where each has two parts of "
            "them that see as many keys as those of any other; default: 1")
          .from(1, 1e4),
      field("cp_comm", &ModelSpec::cp_comm,
            "how ranks over cp get keys and values of other parts of sequences: all of them before "
            "attention, or in a ring beside it; default: all_gather"),
      field("route_over", &ModelSpec::route_over,
            "whose tokens a gate sees, and fill an expert's slots together: each rank's, or those "
            "of the ranks over tp and cp that share sequences, in token order; default: sequence "
            "for gates that need the whole batch, else rank"),
      field("gate", &ModelSpec::gate, "a built-in gate's name"),
      field("k", &ModelSpec::k, "choices per token, for gates that do not fix this number")
          .from(1, 1e6),
      field("capacity_factor", &ModelSpec::capacity_factor,
            "f in an expert's capacity for a rank's N tokens, ceil(k f N / E) slots; 0: every "
            "choice gets a slot")
          .from(0, 1e6),
      field("rows_bound", &ModelSpec::rows_bound,
            "without a capacity, where all-to-alls and experts work only on rows in use: the room "
            "for rows at a device's experts, as a multiple of the tokens times k of the device; a "
            "step with more rows fails")
          .from(1, 1e6),
      field("router", &ModelSpec::router,
            "how scores become choices and weights; scores and weight are for gates that take a "
            "token's k best experts, others have their own"),
      field("balance_loss", &ModelSpec::balance_loss, "auxiliary load-balance loss of the router"),
      field("z_loss", &ModelSpec::z_loss,
            "factor of the mean of logsumexp(router logits)^2 in the loss, for each MoE layer")
          .from(0, 1e6),
      field("bias_balance", &ModelSpec::bias_balance,
            "balances experts by a bias per expert, without a loss"),
      field("dtypes", &ModelSpec::dtypes,
            "types of parameters, gradients and optimizer states, where they differ from dtype"),
      field("micro_batches", &ModelSpec::micro_batches,
            "micro-batches of a step, whose gradients are added up")
          .from(1, 1e5),
      internal(&ModelSpec::dtype, "recipes name the rates of products, of which two are f32"));
}

/// A parameter or a state: its name and full shape (tensors of experts with all experts, so
/// [E, ...]). Element i of parameter number t is initialised from random stream t.
struct ParamInfo {
  std::string name;
  Shape shape;
  Held held;
  enum class Init : uint8_t { kUniform, kOne, kZero } init = Init::kZero;
};
constexpr std::array<const char*, 3> names_of(ParamInfo::Init) {
  return {"uniform", "one", "zero"};
}
constexpr auto fields_of(const ParamInfo*) {
  return carried_table(&ParamInfo::name, &ParamInfo::shape, &ParamInfo::held, &ParamInfo::init);
}

/// A parameter that several stages of a pipeline hold, such as a head tied to the embedding, or all
/// of a stage that two pipeline ranks hold: its gradients are summed before anything reads them.
struct SharedParam {
  std::string name;
  /// kGives: another stage of the same pipeline rank adds this one's gradient to its own and
  /// updates the parameter. kTakes: this stage does. kMeets: so does a stage of another pipeline
  /// rank, and each updates its copy.
  enum class Role : uint8_t { kGives, kTakes, kMeets } role = Role::kMeets;
  int64_t other = 0;  // the other stage
};

constexpr std::array<const char*, 3> names_of(SharedParam::Role) {
  return {"gives", "takes", "meets"};
}

/// A model that ModelBuilder has built for a gate and a number of ranks. It never changes, since
/// its graph would not follow; another gate, size or type takes another model.
struct Model : ModelSpec {
  Model(ModelSpec spec, Graph graph) : ModelSpec(std::move(spec)), forward(std::move(graph)) {}

  /// embedding ... cross_entropy, then the ops that model/routers.h adds. The tensors "ids" and
  /// "targets" are inputs. Expert parameters have only the experts of one rank, [El, ...]. The loss
  /// is the sum over tokens divided by the tokens of all ranks. Where a rank has every expert (one
  /// rank, or ep = 1), nothing is exchanged and rows keep the shape [E,C,d].
  Graph forward;
  /// In the order in which the blocks declared them.
  std::vector<ParamInfo> parameters;
  /// The state tensors that belong to no parameter, such as biases that balance experts; all are 0
  /// at first.
  std::vector<ParamInfo> states;
  std::vector<int64_t> moe_blocks;  // the block of each MoE layer, ascending
  /// Of one stage of a pipeline (stages.h), else empty; in the order in which gradients are summed.
  std::vector<SharedParam> shared;
  int64_t stage = 0;

  int64_t num_moe_layers() const { return static_cast<int64_t>(moe_blocks.size()); }
  /// Number of an MoE block among the MoE layers, counted from 0.
  int64_t moe_layer(int64_t block) const;
};
using ModelPtr = std::shared_ptr<const Model>;

/// Gradients are multiplied by min(1, norm / (n + 1e-6)), where n is the Euclidean norm of all
/// gradients together, of all ranks' experts too (PyTorch's clip_grad_norm_).
struct GradientClip {
  double norm = 0;  // 0 means never
};
constexpr auto fields_of(const GradientClip*) {
  return field_table<GradientClip>(
      field(
          "clip_norm", &GradientClip::norm,
          "largest Euclidean norm of all gradients together, to which they are scaled down before "
          "the updates; 0: none")
          .from(0, 1e38));
}

struct Sgd {
  double lr = 0.1;
  double momentum = 0.9;
  GradientClip clip = {};
};
constexpr auto fields_of(const Sgd*) {
  return field_table<Sgd>(
      field("lr", &Sgd::lr, "learning rate").from(0, 1e38),
      field("momentum", &Sgd::momentum, "share of the last update that is added to the next")
          .from(0, 1),
      inlined("", &Sgd::clip));
}

/// AdamW. The weight decay, multiplied by lr, applies to tensors with two or more axes (not
/// counting an axis over experts), and not to biases and LayerNorms.
struct Adamw {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  GradientClip clip = {};
};
constexpr auto fields_of(const Adamw*) {
  constexpr double kBelowOne = 1 - 0x1p-24;  // the largest value below 1 in float
  return field_table<Adamw>(
      field("lr", &Adamw::lr, "learning rate").from(0, 1e38),
      field("beta1", &Adamw::beta1, "decay of the mean of gradients").from(0, kBelowOne),
      field("beta2", &Adamw::beta2, "decay of the mean of squared gradients").from(0, kBelowOne),
      field("eps", &Adamw::eps, "added to the square root of the mean of squared gradients")
          .from(1e-30, 1),
      field("weight_decay", &Adamw::weight_decay, "decay of matrices and tables, multiplied by lr")
          .from(0, 1e6),
      inlined("", &Adamw::clip));
}

using OptimizerSpec = std::variant<Sgd, Adamw>;
inline double clip_norm(const OptimizerSpec& optimizer) {
  return std::visit([](const auto& o) { return o.clip.norm; }, optimizer);
}

/// What a gate, built-in or from Lua, declares for the graph: plain values, not its function.
struct GateSpec {
  std::string name;
  int64_t k = 1;
  int64_t columns = 1;
  int64_t capacity = 0;         // slots per expert and rank
  int64_t shared_capacity = 0;  // per expert, of all ranks that route together; 0: none do
  bool batch_scope = false;
  std::string scores = "softmax";  // or "sigmoid"
  std::string weight = "prob";     // or "renorm", "one"
  Chooser chooser = Chooser::kToken;
  double scale = 1;          // of the weights (routed_scaling_factor of DeepSeek's configs)
  ExpertGroups groups = {};  // of which a token chooses from a few; the default: from all experts
};

/// Throws UserError naming "model.<field>", the value and what is allowed. Checks the ranges of the
/// fields and dtype, that ep divides num_ranks and experts, that tp * cp divides num_ranks and seq,
/// of which cp splits halves, and that tokens are not too many for i32 indices.
void check(const ModelSpec& model, int64_t num_ranks);

/// Returns the GateSpec of `gate`; without `gate`, that of the built-in gate ModelSpec::gate.
/// Throws UserError when it chooses more experts per token than there are, and as set_slots() does.
GateSpec gate_spec(const ModelSpec& model);
GateSpec gate_spec(const ModelSpec& model, const Gate& gate);

/// Sets capacity, and where ranks route together shared_capacity and batch_scope, which is the
/// gate's before. by_batch: whether the gate's choices need the whole batch; capacity:
/// returns the slots per expert for that many tokens. Throws UserError naming "model.route_over"
/// where the gate cannot route as that says, or where it has no effect.
void set_slots(GateSpec& spec, const ModelSpec& model, bool by_batch,
               const std::function<int64_t(int64_t tokens)>& capacity);

/// Sets what the model's router says for every gate: scale and groups. Throws UserError naming
/// "model.router" for groups that do not fit the experts, or the gate.
void set_router(GateSpec& spec, const ModelSpec& model);

/// Returns a gate whose choices follow `routing`, with the model's number of choices per token.
/// moe_blocks: as in Model; they may be empty if only the gate_spec() of the gate is needed.
Gate routed_gate(std::shared_ptr<const RoutingModel> routing, const ModelSpec& model,
                 std::vector<int64_t> moe_blocks, int64_t num_ranks);
Gate routed_gate(std::shared_ptr<const RoutingModel> routing, const Model& model,
                 int64_t num_ranks);
/// Returns `gate`, but it chooses by the scores of `routing`. Requires: these are not null.
Gate scored_gate(Gate gate, std::shared_ptr<const RoutingModel> routing, const Model& model,
                 int64_t num_ranks);
/// Returns the gate with the sizes that it has in a plan of the model, to run a sample.
GateUse gate_use(Gate gate, const GateSpec& spec, const Model& model, int64_t num_ranks);

/// Returns the tensor of the cross entropy in the graph of a model (also after passes). Throws
/// UserError unless the graph has_loss().
TensorId loss_of(const Graph& graph);
/// Whether the graph has the cross entropy; of the stages of a pipeline only the last has.
bool has_loss(const Graph& graph);

/// Where an all-reduce of gradients is in program order. kReady: directly after the op that
/// completes its last gradient. kAfter: after the whole backward.
enum class ReducePlace : uint8_t { kAfter, kReady };
constexpr std::array<const char*, 2> names_of(ReducePlace) {
  return {"after", "ready"};
}
/// The lane of the gradients' all-reduces; names_of() returns the names of these lanes.
enum class ReduceLane : uint8_t { kWithAllToAlls, kOwn };
constexpr std::array<const char*, 2> names_of(ReduceLane) {
  return {"comm", "comm_reduce"};
}

/// How gradients are all-reduced.
struct GradientSync {
  /// Gradients are packed into all-reduces of at least this many bytes, in the order in which they
  /// become complete. Gradients of experts get all-reduces of their own where they are summed over
  /// other ranks than the other gradients. 0: one all-reduce per gradient.
  Bytes bucket_bytes = 0;
  ReducePlace place = ReducePlace::kReady;
  ReduceLane lane = ReduceLane::kWithAllToAlls;
};
constexpr auto fields_of(const GradientSync*) {
  return field_table<GradientSync>(
      field("bucket_bytes", &GradientSync::bucket_bytes,
            "least bytes per all-reduce of gradients; 0 means one all-reduce per gradient")
          .from(0, 1e12),
      field("place", &GradientSync::place,
            "where all-reduces are: after the backward, or each when its gradients are complete"),
      field("lane", &GradientSync::lane,
            "lane of the all-reduces: that of the all-to-alls, or a lane of their own"));
}

/// Adds the backward by autodiff, then the all-reduce of every gradient over the ranks that hold
/// its parameter, then the update of every parameter: SGD with momentum (state "<param>.v") or
/// AdamW (states "<param>.m" and "<param>.v"), with "<param>.master" where ModelSpec::dtypes says
/// so. The gradients of experts are summed over their copies() in the grid; where that is one
/// rank, they have no all-reduce.
/// shared: sums the gradients of these parameters over the stages that hold them first, in the
/// order of the list.
void add_backward_and_update(Graph& graph, const OptimizerSpec& optimizer, const GradientSync& sync,
                             const ModelSpec& model = {}, std::span<const SharedParam> shared = {},
                             int64_t stage = 0);

/// Initial value of element i of parameter t: (random24(i, t) - 2^23) * 2^-28, in [-2^-5, 2^-5).
double reference_init(uint64_t element, uint64_t parameter);

}  // namespace moe
