// OpDef: all properties of one kind of op. The struct is declared here; its values are in ops/, one
// file per family of ops. Passes test properties (lane kind, collective, is_dw) and never the names
// of ops. Kernels are in kernels/, what an op needs when it runs is in ops/kernel_call.h.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/group.h"
#include "engine/graph/graph.h"

namespace moe {

/// The kind of lane that an op runs on. kHost: work that a CPU does while the rank computes, such
/// as placing experts and copying them from CPU memory.
enum class LaneKind : uint8_t { kCompute, kComm, kHost };
constexpr std::array<const char*, 3> names_of(LaneKind) {
  return {"compute", "comm", "host"};
}
/// The communication of an op. kAllToAll exchanges rows of tokens or counts, kAllReduce sums
/// gradients or the routers' counts over ranks, kReduceScatter and kAllGather are its two halves
/// (each rank gets its slices of the sums; each rank's slices go to all), kExperts moves experts'
/// parameters, gradients or state between devices as a placement states, kShift sends tensors of
/// each rank of a group to the next, and of the last to the first, kHandoff moves tensors between a
/// rank and the rank at its place in another pipeline rank.
enum class Collective : uint8_t {
  kNone,
  kAllToAll,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kExperts,
  kShift,
  kHandoff
};
/// Whether it is one of the two halves of an all-reduce.
constexpr bool is_half(Collective c) {
  return c == Collective::kReduceScatter || c == Collective::kAllGather;
}
/// What a collective carries.
enum class Payload : uint8_t {
  kNone,
  kRows,               // rows of tokens in slots, to the ranks of their experts or back
  kCounts,             // how many rows each expert gets from each rank
  kLoads,              // every rank's counts or estimates, to all ranks
  kGradients,          // gradients or the routers' counts, summed over ranks
  kParameters,         // parameters of which each rank has updated its slices, to all ranks
  kShadows,            // parameters of experts, to devices that get a copy for one step
  kShadowGradients,    // gradients of the copies of kShadows, to the experts' owners
  kResidentGradients,  // gradients, summed over the devices where an expert is resident
  kResidents,          // experts that move to another device and stay there
  kHandoff,            // activations and gradients, to another pipeline rank
  kActivations,        // activations and gradients, of ranks that split products
};
/// Whether systems treat it as a transfer of gradients: all-reduces and their halves.
constexpr bool is_sync(Payload p) {
  return p == Payload::kGradients || p == Payload::kParameters;
}

/// The role of the op in an MoE layer, for ops that passes and executors need to find.
enum class MoeOp : uint8_t {
  kNone,
  kGate,
  kDispatch,
  kDispatchWeight,
  kExpertProduct,
  kCombine,
  kCombineDx,
  kSlotRows,
  kPlace,          // computes a placement from loads, by a policy
  kExpect,         // estimates loads from the choices in the layers before
  kPlaceExpected,  // computes a placement from the estimates of kExpect
  kFineTune,       // computes a placement from the gate's loads where kExpect was wrong
  kSwapIn,         // copies experts from CPU memory to their device
};
/// Ops that functions of the graph and passes create or replace.
enum class BasicOp : uint8_t {
  kNone,
  kAdd,
  kAddLoads,
  kSplit,
  kConcat,
  kTransposeBlocks,
  kGelu,
  kGeluDx
};
/// Which loss the first output of an op is.
enum class Loss : uint8_t { kNone, kModel, kBalance, kZ, kMtp };
/// Which rate of a device limits the op at usual sizes; calibration fits each rate to the ops that
/// it limits, and uses no op of kNone.
enum class Bound : uint8_t { kNone, kFlops, kBytes };

/// What the values of an operand mean. In shapes, T = tokens, K = choices per token, E = experts,
/// El = experts per rank, P = ranks that together hold all experts, C = slots per expert and rank.
enum class Role : uint8_t {
  kValues,  // floats without one of the meanings below
  kAny,     // floats or integers, which the op only moves
  // Floats.
  kTable,   // one row per token id
  kScores,  // one column per token id
  kBias,
  kAdded,     // an accumulator or a residual: a tensor that the op adds to its result
  kSum,       // the input of an activation function
  kQuery,     // followed by the keys and the values, or holds these, too
  kProbs,     // [T,E] scores of the gate
  kWeight,    // [T,K] weights of the choices
  kGradient,  // of the parameter that an update changes
  kMaster,    // a wider copy of this parameter, which the update changes first
  kSlots,     // [E,C,..] slots at the tokens' ranks
  // Integers.
  kIds,
  kExpert,      // [T,K] the experts that a token chose
  kChoiceSlot,  // [T,K] the slot of a choice; -1: the choice was dropped
  kSlotChoice,  // [E,C] the choice in a slot; -1: the slot is empty
  kCounts,      // [E] rows that this rank sends to each expert
  kRecvCounts,  // [El,P] rows that each expert gets from each rank
  kUsedBefore,  // [E] slots that earlier parts of the batch hold
  kBegin,       // [E] first row of this part, after the rows of earlier parts of the batch
  kRecvBegin,   // [El,P] like kBegin, at the ranks of the experts
  kLoads,       // [P,E] rows per source rank and expert
  kEstimate,
  kPlacement,
  kNextPlacement,
};
/// Whether operands of this role are integers. Operands of role kAny are either.
constexpr bool is_index(Role role) {
  return role >= Role::kIds;
}

/// Whether an operand of this role is about tokens or slots at the rank of the tokens
/// (lies_at_experts: whether it is about rows at the rank of their experts).
constexpr bool lies_at_source(Role role) {
  return role == Role::kSlots || (role >= Role::kExpert && role <= Role::kCounts);
}
constexpr bool lies_at_experts(Role role) {
  return role == Role::kRecvCounts || role == Role::kRecvBegin;
}

/// An input or output of an op. Its place is its index in OpDef::inputs or OpDef::outputs.
struct Operand {
  const char* name;
  Role role = Role::kValues;
  bool optional = false;       // an input that may be absent (an invalid id)
  int most = 1;                // above 1: a list of 1 to `most` tensors; only for the last operand
  const char* with = nullptr;  // the operand exists only where this attribute is given and not 0
};
constexpr Operand optional(const char* name, Role role = Role::kValues) {
  return {.name = name, .role = role, .optional = true};
}
/// Returns an operand that is a list of 1 to `most` tensors.
constexpr Operand several(const char* name, int most, Role role = Role::kValues) {
  return {.name = name, .role = role, .most = most};
}
/// Returns an operand that exists only where the attribute is given and not 0.
constexpr Operand with(const char* attribute, const char* name, Role role = Role::kValues) {
  return {.name = name, .role = role, .optional = true, .with = attribute};
}

/// The sizes of the matrix products of an op, by which measured times are looked up.
struct MatrixWork {
  enum class Kind : uint8_t {
    kNone,       // the op has no matrix products
    kGemm,       // a product of [m,k] and [k,n]
    kExperts,    // one product per expert; `rows` rows each, weights [n,k]
    kAttention,  // causal attention: batch, seq, heads, kv_heads, head_dim
  };
  /// What the product makes: the op's result, the gradient of its input, or that of its weights,
  /// whose products of experts are [n,rows] times [rows,k].
  enum class Of : uint8_t { kResult, kDx, kDw };
  Kind kind = Kind::kNone;
  Of of = Of::kResult;
  double m = 0, n = 0, k = 0;
  double experts = 0, rows = 0;
  double batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double share = 1;       // for attention: of the flops of values of head_dim columns, no window
  double seen = 1;        // for attention: of the pairs of a causal triangle, without a window 1
  double value_dim = 0;   // for attention: columns of a head's values
  bool backward = false;  // for attention: all gradients in one op
  double grad_bytes = 0;  // for kDw: of a number of the gradient
};
/// Returns the sizes of a product of [m,k] and [k,n].
inline MatrixWork gemm_of(double m, double n, double k, MatrixWork::Of of = {}) {
  return {.kind = MatrixWork::Kind::kGemm, .of = of, .m = m, .n = n, .k = k};
}

/// The work of one op on one rank, for cost models. flops counts a multiply-add as two. bytes is
/// memory traffic if each operand is read or written once; for a collective, bytes that a rank
/// sends.
struct Work {
  double flops = 0;
  double bytes = 0;
  MatrixWork matrix = {};
  double host_bytes = 0;  // the share of `bytes` that is read from CPU memory
  double seconds = 0;     // given time that the op takes in addition, as of a planner

  /// Whether the flops run on the device's matrix units.
  bool gemm() const { return matrix.kind != MatrixWork::Kind::kNone; }
};

/// Assumptions about data, from which the work of a data-dependent op is computed before a run.
struct WorkContext {
  /// Expected share of slots that hold a token, 0..1 (balanced routing: 1 / capacity factor).
  double slot_occupancy = 1.0;
  /// Experts that a swap_in copies to one device; negative: as many as the op's work() assumes.
  double loaded_experts = -1;
  /// Whether a fine_tune places experts again, instead of keeping the placement of place_expected.
  bool again = false;
};

struct TensorSpec {
  Shape shape;
  DType dtype;
  int64_t stored_rows = 0;  // as in Tensor
};

/// How a tensor is cut when its op runs in parts: along an axis (0, 1, ...), or as one of these
/// codes. kRows and kRowEnds are Lancet's irregular axis A_irr (MLSys 2024, section 5.1): all parts
/// of a kRows tensor are in one storage, and in each block of slots part p has the rows from the
/// row end of part p-1 to the row end of part p.
constexpr int kWhole = -1;    // not cut: all parts read the whole tensor
constexpr int kRows = -2;     // rows of slots; how many a part has follows from the gate's choices
constexpr int kRowEnds = -3;  // per block, the number of rows in this part and all earlier parts

/// One allowed way to cut an op: for each possible input and each output an axis, kWhole, kRows or
/// kRowEnds. The entry of an absent input is ignored.
struct AxisTuple {
  std::vector<int> inputs, outputs;
};

/// In every part but the first, the optional input number `input` is the row end of the previous
/// part. This row end is input number `of_input` or output number `of_output` of the previous
/// part's op; the one of both that is not given is -1.
struct BeginInput {
  int input, of_input = -1, of_output = -1;
};

/// A tensor (`piece`) that an op puts into the storage of another of the same dtype (`whole`).
struct Piece {
  TensorId piece, whole;
  int64_t offset = 0;  // number of elements before the piece's first element in the whole
  TensorId end = {};   // if valid: the piece has only some rows of the whole, up to this row end
  bool cut = false;    // the piece is a part along the rows in use (ops/row_cut.h)
};

namespace kernels {
struct Bf16;
}
template <class T>
struct KernelCall;  // ops/kernel_call.h
class GradContext;  // graph/autodiff.h

/// The kernel glue of an op: the CPU functions that call kernels for it.
struct KernelGlue {
  void (*f32)(const KernelCall<float>&) = nullptr;
  void (*f64)(const KernelCall<double>&) = nullptr;
  /// For activations stored in bf16; null: the op runs as in f32.
  void (*bf16)(const KernelCall<kernels::Bf16>&) = nullptr;
};
/// Returns the glue of a function that takes calls of any type.
template <class Run>
KernelGlue any_type(Run run) {
  return {run, run, run};
}
/// The same for an op that runs on bf16 as in f32.
template <class Run>
KernelGlue wide_types(Run run) {
  return {run, run, nullptr};
}

/// The value of OpDef::gradient of an op through which no gradient flows. Never called.
void no_gradient(GradContext&, OpId op);

struct OpDef {
  const char* name;
  const char* doc;
  LaneKind lane = LaneKind::kCompute;
  Collective collective = Collective::kNone;
  Payload payload = Payload::kNone;
  MoeOp moe = MoeOp::kNone;
  BasicOp basic = BasicOp::kNone;
  Bound bound = Bound::kNone;
  /// Operands in the order of their places; required outputs come first.
  std::vector<Operand> inputs = {};
  std::vector<Operand> outputs = {};

  /// The shape rule: returns shapes and dtypes of the outputs. Throws UserError naming op, tensor
  /// and what is allowed when inputs or attributes are wrong.
  std::vector<TensorSpec> (*infer)(const Graph&, const Op&) = nullptr;
  Work (*work)(const Graph&, const Op&, const WorkContext&) = nullptr;
  /// The gradient rule: emits the op's backward. An op of the table must set it, to no_gradient if
  /// no gradient flows through this kind.
  void (*gradient)(GradContext&, OpId) = nullptr;
  /// Returns false when this op's attributes let no gradient through; null: all ops of the kind
  /// let it through.
  bool (*differentiable)(const Op&) = nullptr;

  /// If not kNone, output 0 is a loss [1], and the gradient rule needs no gradient of an output.
  Loss loss = Loss::kNone;

  /// Returns all allowed cuts of the op, preferred ones first (Lancet, section 5.1, without the cut
  /// in which all operands are whole); null: none.
  std::vector<AxisTuple> (*axes)(const Graph&, const Op&) = nullptr;
  std::vector<BeginInput> begins = {};
  /// Returns the row end of an output that is cut as kRows.
  TensorId (*rows_end)(const Graph&, const Op&, size_t output) = nullptr;

  /// Pairs (output, input): the output may use the input's storage if no later op reads the input.
  /// Pairs may name inputs and outputs that an op lacks; alias_pairs() returns those that it has.
  std::vector<std::pair<int, int>> may_alias = {};
  /// True if each output may use the storage of an input: n outputs those of the last n inputs.
  bool alias_each = false;
  /// Inputs that the op overwrites in place; they must be parameters or states. Such an op runs
  /// after all ops that only read the tensor. Ops that overwrite the same tensor run in program
  /// order: the optimizer's update, then a transfer between devices (mutates_from).
  std::vector<int> mutates = {};
  int mutates_from = -1;  // 0 or more: the op also overwrites every input from this one on
  /// Returns which tensors this op joins in one storage; null: none. Pieces that already are at
  /// their place in the whole are not copied by the kernel.
  std::vector<Piece> (*pieces)(const Graph&, const Op&) = nullptr;
  /// True if the op's pieces are rows of the parts of a cut op, with row ends (Piece::end).
  bool joins_parts = false;
  /// Returns whether this op only joins tensors in one storage and writes nothing; null: never.
  bool (*view)(const Op&) = nullptr;
  /// True if the outputs can be slots for experts; slots without an expert have undefined values.
  bool loose_slots = false;
  /// Whether an op on rows in slots reads and writes only the rows in use (or uses slots by index),
  /// so that the others may hold anything, or need not be stored (Tensor::stored_rows); null:
  /// never.
  bool (*only_used_rows)(const Op&) = nullptr;
  /// Inputs of matrix products. Where the op has bf16 activations, its kernels round an f32 tensor
  /// at these inputs to bf16 in every call; a tensor already in bf16 gives the same result.
  std::vector<int> rounds = {};
  /// Outputs of which the op computes only a part. Another op computes the rest; only its output is
  /// checked for finite values.
  std::vector<int> partly_written = {};
  /// Returns the scratch bytes for one call with elem_bytes bytes per float; null: none.
  Bytes (*scratch_bytes)(const Graph&, const Op&, Bytes elem_bytes) = nullptr;

  /// Null for collectives, which the executor runs through its Communicator, and for ops that are
  /// only simulated.
  KernelGlue run = {};

  // In a run on a GPU, kernels run and operands are on the GPU; the glue runs on the host, its CPU:
  /// Returns the inputs that the glue itself reads (counts, row ends, placements) and that must
  /// therefore be in CPU memory; null: none.
  std::vector<size_t> (*host_inputs)(const Op&) = nullptr;
  /// Returns whether the glue of this op does the work itself, so that inputs, outputs and scratch
  /// must all be in CPU memory; null: no op of this kind does.
  bool (*on_host)(const Graph&, const Op&) = nullptr;
};

/// OpDef::only_used_rows of ops that never use other rows.
inline bool on_any(const Op&) {
  return true;
}
/// OpDef::on_host of an op whose glue always does the work.
inline bool always(const Graph&, const Op&) {
  return true;
}
/// Whether the op's glue does the op's work on the CPU, also in a run on a GPU (OpDef::on_host).
bool runs_on_host(const Graph& graph, const Op& op);
/// Whether an input or output of the op is bf16.
bool stores_bf16(const Graph& graph, const Op& op);
/// Returns the present inputs that the glue, or for a collective the executor, reads on the CPU.
std::vector<TensorId> host_inputs(const Graph& graph, const Op& op);

/// A table of all kinds of ops; the engine's table is in ops/ops.h.
class OpTable {
 public:
  explicit OpTable(std::vector<const OpDef*> defs) : defs_(std::move(defs)) {}
  /// Returns the kind of this name. Throws UserError with the nearest name when there is none.
  OpKind kind(std::string_view name) const;
  /// Returns the kind with OpDef::basic == which. Throws MOE_CHECK's error when there is none.
  const OpDef& basic(BasicOp which) const;
  const OpDef& def(OpKind kind) const { return *defs_[kind.index()]; }
  std::span<const OpDef* const> defs() const { return defs_; }

 private:
  std::vector<const OpDef*> defs_;
};

/// Returns the pairs (output, input) of this op that may share storage, both present.
std::vector<std::pair<int, int>> alias_pairs(const Graph& graph, const Op& op);

/// Returns the present inputs that the op overwrites in place.
std::vector<int> mutated_inputs(const Graph& graph, const Op& op);

/// Returns which tensors the op joins in one storage (OpDef::pieces).
std::vector<Piece> pieces(const Graph& graph, const Op& op);
/// Whether the op writes nothing: its outputs are in its inputs' storage, or the reverse.
bool is_view(const Graph& graph, const Op& op);

/// Returns the name of output i of an op: "<op>" for output 0, then "<op>:1", ...
std::string output_name(const std::string& op, size_t i);
/// Returns the default kind of an op's outputs: gradient in the backward, else activation.
TensorKind usual_tensor_kind(Phase phase);

/// Returns the group of ranks of a collective op, from its attributes group (number of members;
/// default: all ranks) and stride (default 1). Throws UserError naming op and attributes unless
/// group * stride divides the number of ranks.
Group group_of(const Graph& graph, const Op& op);
/// Returns the round of a collective op, from attrs round (default 0) and rounds (default 1), see
/// Round in base/group.h; with to="source" the round is Round::reversed(). Throws UserError naming
/// op and attributes when they do not fit the group.
Round round_of(const Graph& graph, const Op& op);
/// Returns the attributes group and stride for a group; none where the group is all ranks.
Attrs group_attrs(const Group& group, int64_t num_ranks);

// Whether an op has this MoeOp, BasicOp or Payload; false for a removed op.
bool is(const Graph& graph, OpId op, MoeOp which);
bool is(const Graph& graph, OpId op, BasicOp which);
bool carries(const Graph& graph, OpId op, Payload which);

/// Returns the place of the first operand of this role; nullopt when there is none.
std::optional<size_t> place_of(const std::vector<Operand>& operands, Role role);
/// Returns the op's input (output_of: output) of this role; an invalid id when it is absent.
TensorId input_of(const Graph& graph, const Op& op, Role role);
TensorId output_of(const Graph& graph, const Op& op, Role role);
/// Sets the input of this role; an invalid `tensor` makes it absent. Requires: the kind has one.
void set_input(Graph& graph, OpId op, Role role, TensorId tensor);
/// Returns the operand to which input i of this op belongs; null if the kind has fewer inputs.
const Operand* input_operand(const OpDef& def, const Op& op, size_t i);

/// Throws UserError when the op has too few or too many inputs for its kind, or one that is
/// required is absent or not a tensor of the graph.
void check_inputs(const Graph& graph, const Op& op);
/// For an op that its shape rule has accepted: throws MOE_CHECK's error naming the op's kind unless
/// the kind declares num_outputs outputs and roles of integers for the integer inputs.
void check_made(const Graph& graph, const Op& op, size_t num_outputs);
/// Throws MOE_CHECK's error naming an op with an incomplete or contradictory definition.
void check_declared(const OpTable& table);

}  // namespace moe
