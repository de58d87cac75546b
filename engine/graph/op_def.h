// OpDef: everything the engine knows about one kind of op, declared here, defined one file per op
// in ops/. Passes ask for properties (lane kind, collective, dw), never for names.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/group.h"
#include "engine/graph/graph.h"

namespace moe {

/// kHost: what a rank's host does beside compute, placing experts and copying them from its memory.
enum class LaneKind : uint8_t { kCompute, kComm, kHost };
/// "compute", "comm", "host".
const char* lane_kind_name(LaneKind kind);
/// kAllToAll: tokens. kAllReduce: gradients. kExperts: experts' parameters, gradients or state move
/// from device to device, as a placement says.
enum class Collective : uint8_t { kNone, kAllToAll, kAllReduce, kExperts };
/// What a collective carries.
enum class Payload : uint8_t {
  kNone,
  kRows,       // tokens in slots, to the ranks of their experts or back
  kCounts,     // how many rows each rank gets
  kLoads,      // what every rank says of its tokens, to all ranks
  kGradients,  // summed over ranks
  kShadows,    // copies of experts, to the devices that shadow them
  kShadowGradients,
  kResidentGradients,  // summed over the devices that hold an expert for good
  kResidents,          // experts that move for good
};

/// What the op does in an MoE layer, where passes and executors have to find it.
enum class MoeOp : uint8_t {
  kNone,
  kGate,
  kDispatch,
  kExpertProduct,
  kCombine,
  kCombineDx,
  kSlotRows,
  kPlace,          // from loads, by a policy
  kExpect,         // estimates loads from the layers before
  kPlaceExpected,  // by such estimates
  kFineTune,       // by the loads that came, where estimates do not hold
  kSwapIn,         // copies experts from host memory
};
/// Ops that the graph's own functions and passes make, take apart or put together.
enum class BasicOp : uint8_t { kNone, kAdd, kSplit, kConcat, kTransposeBlocks, kGelu, kGeluDx };
/// Which loss the first output is.
enum class Loss : uint8_t { kNone, kModel, kBalance, kZ };
/// What limits the op on usual sizes: calibration fits a device's rates to such ops.
enum class Bound : uint8_t { kNone, kFlops, kBytes };

/// What the values of an operand mean. Shapes: T tokens, K choices per token, E experts, El experts
/// per rank, P ranks that hold all experts together, C slots per expert and rank.
enum class Role : uint8_t {
  kValues,  // floats of no further meaning here
  kAny,     // floats or integers, which are moved as they are
  // Floats.
  kTable,   // a row for each token id
  kScores,  // a column for each token id
  kBias,
  kAdded,  // an accumulator, or a residual
  kSum,    // what an activation function is applied to
  kQkv,
  kProbs,   // [T,E] of the gate
  kWeight,  // [T,K] of the choices
  kSlots,   // [E,C,..] at the tokens' ranks
  // Integers.
  kIds,
  kExpert,      // [T,K] the experts that a token chose
  kChoiceSlot,  // [T,K] the slot of a choice, or none
  kSlotChoice,  // [E,C] the choice that lies in a slot, or none
  kCounts,      // [E] rows that this rank sends
  kRecvCounts,  // [El,P] rows at the experts
  kUsedBefore,  // [E] places that the parts of the batch before hold
  kBegin,       // [E] rows that the parts of the batch before hold
  kRecvBegin,   // [El,P] the same at the experts
  kLoads,       // [P,E]
  kEstimate,
  kPlacement,
  kNextPlacement,
};
/// Operands of this role are integers; of kAny they may be.
constexpr bool is_index(Role role) {
  return role >= Role::kIds;
}

/// Its rows, or what it says of rows, are the tokens' rank's, or the experts'.
constexpr bool lies_at_source(Role role) {
  return role == Role::kSlots || (role >= Role::kExpert && role <= Role::kCounts);
}
constexpr bool lies_at_experts(Role role) {
  return role == Role::kRecvCounts || role == Role::kRecvBegin;
}

/// An input or output of an op, by its place.
struct Operand {
  const char* name;
  Role role = Role::kValues;
  bool optional = false;       // of an input: its place may stay empty
  int most = 1;                // more than 1: up to this many, as the last operand
  const char* with = nullptr;  // it is there only where this attribute is given and not 0
};
constexpr Operand optional(const char* name, Role role = Role::kValues) {
  return {.name = name, .role = role, .optional = true};
}
/// 1 to `most` of them.
constexpr Operand several(const char* name, int most, Role role = Role::kValues) {
  return {.name = name, .role = role, .most = most};
}
/// It is there where the attribute is given and not 0.
constexpr Operand with(const char* attribute, const char* name, Role role = Role::kValues) {
  return {.name = name, .role = role, .optional = true, .with = attribute};
}

/// What a step must cost, for cost models. flops counts a multiply-add as two. bytes is memory
/// traffic with every operand touched once.
struct Work {
  double flops = 0;
  double bytes = 0;
  bool gemm = false;      // flops run on the matrix units
  double host_bytes = 0;  // of the bytes, those that come from the host's memory
};

/// What the work of a data-dependent op is taken from when nothing has run yet.
struct WorkContext {
  /// Expected share of capacity slots that hold a token, 0..1 (balanced routing:
  /// 1/capacity_factor).
  double slot_occupancy = 1.0;
  /// Experts that a swap_in copies to one device; negative: as many as it usually does.
  double loaded_experts = -1;
  /// Of a fine_tune: it places again.
  bool again = false;
};

struct TensorSpec {
  Shape shape;
  DType dtype;
};

/// How a tensor is cut when its op runs in parts: along an axis (0, 1, ...), or as one of these.
/// Rows and row ends are Lancet's irregular axis A_irr (MLSys 2024, section 5.1): the parts of a
/// rows tensor lie in one storage, part p in the rows from its row end of the part before up to its
/// own.
constexpr int kWhole = -1;    // not cut: all parts share it
constexpr int kRows = -2;     // rows of slots, as many as the gate says
constexpr int kRowEnds = -3;  // what this part and those before it use; the last part's is all

/// One allowed way to cut an op: for each input that it may have and each output an axis, kWhole,
/// kRows or kRowEnds. What stands for an absent input does not matter.
struct AxisTuple {
  std::vector<int> inputs, outputs;
};

/// In the parts after the first, optional input `input` is the row end of the part before: what
/// that part has as input `of_input`, or makes as output `of_output`.
struct BeginInput {
  int input, of_input = -1, of_output = -1;
};

/// A tensor that lies inside another one's storage because an op joins them. Both have one dtype.
struct Piece {
  TensorId piece, whole;
  int64_t offset = 0;  // in elements, from the whole's first to the piece's first
  TensorId end = {};   // valid: the piece holds rows of the whole only, up to this row end
};

/// Variants in which a device may run one op: what its attribute may say, first what is meant where
/// it says nothing. Results are the same but for rounding; fewer than two names: there is no
/// choice.
struct KernelVariants {
  const char* attribute = nullptr;
  std::vector<const char*> names = {};
};

namespace kernels {
struct Bf16;
}
template <class T>
struct KernelCall;  // ops/kernel_call.h
class GradContext;  // graph/autodiff.h

struct OpDef {
  const char* name;
  const char* doc;
  LaneKind lane = LaneKind::kCompute;
  Collective collective = Collective::kNone;
  Payload payload = Payload::kNone;
  MoeOp moe = MoeOp::kNone;
  BasicOp basic = BasicOp::kNone;
  Bound bound = Bound::kNone;
  /// By place. Those that must be there stand first.
  std::vector<Operand> inputs = {};
  std::vector<Operand> outputs = {};

  /// Shapes and dtypes of the outputs. Throws UserError naming op, tensor and what is allowed.
  std::vector<TensorSpec> (*infer)(const Graph&, const Op&) = nullptr;
  Work (*work)(const Graph&, const Op&, const WorkContext&) = nullptr;
  /// Emits the backward; null when no gradient flows through this op.
  void (*gradient)(GradContext&, OpId) = nullptr;
  /// False when this very op (by its attributes) lets no gradient through; null: never.
  bool (*differentiable)(const Op&) = nullptr;

  /// The first output is a loss [1], whose gradient rule starts from nothing.
  Loss loss = Loss::kNone;

  /// All ways to cut the op, preferred first (Lancet, section 5.1, less "all whole"); null: none.
  std::vector<AxisTuple> (*axes)(const Graph&, const Op&) = nullptr;
  std::vector<BeginInput> begins = {};
  /// The row end of an output that is cut as kRows.
  TensorId (*rows_end)(const Graph&, const Op&, size_t output) = nullptr;

  /// (output, input): the output may take the input's storage when the input dies here.
  /// Pairs may name absent inputs and outputs; alias_pairs() gives those of one op.
  std::vector<std::pair<int, int>> may_alias = {};
  /// Every output may take the input with its number.
  bool alias_each = false;
  /// Inputs that are overwritten in place; they must be parameters or states. An op that overwrites
  /// one runs after all others that read it and do not, those that do in program order: its update,
  /// then what moves it to another device (Collective::kExperts).
  std::vector<int> mutates = {};
  int mutates_from = -1;  // 0 or more: every input from this one on, too
  /// What this very op joins in one storage; null: nothing. Where the pieces lie in their places
  /// the kernel moves none of them.
  std::vector<Piece> (*pieces)(const Graph&, const Op&) = nullptr;
  /// Its pieces are rows of parts, with their row ends.
  bool joins_parts = false;
  /// This very op does nothing but join, so it writes nothing and costs nothing; null: never.
  bool (*view)(const Op&) = nullptr;
  /// Its outputs, and what it overwrites, are slots, and those that hold no expert hold anything.
  bool loose_slots = false;
  /// Operands of matrix products: where the op stores bf16, its kernels round those of f32 anew in
  /// every call, and take them as bf16 with the same result.
  std::vector<int> rounds = {};
  /// Outputs of which the op writes a part only, and another op the rest.
  std::vector<int> partly_written = {};
  /// Scratch bytes for one call, element size of T = elem_bytes; null: none.
  Bytes (*scratch_bytes)(const Graph&, const Op&, Bytes elem_bytes) = nullptr;

  /// Kernel glue; null for collectives (the executor runs them through its Communicator) and for
  /// ops that are only simulated.
  void (*run_f32)(const KernelCall<float>&) = nullptr;
  void (*run_f64)(const KernelCall<double>&) = nullptr;
  /// Where activations are stored in bf16: of ops that have one. Others run as in f32.
  void (*run_bf16)(const KernelCall<kernels::Bf16>&) = nullptr;

  // Where kernels run on a device and their operands lie there, the glue runs on the host.
  /// Inputs that the glue itself reads, counts and row ends: they must be on the host; null: none.
  std::vector<size_t> (*host_inputs)(const Op&) = nullptr;
  /// The glue of this very op does the work itself: its inputs, outputs and scratch must all be on
  /// the host; null: never.
  bool (*on_host)(const Graph&, const Op&) = nullptr;
  /// Variants of its kernels for this very op; null: one.
  KernelVariants (*variants)(const Graph&, const Op&) = nullptr;
};

/// OpDef::on_host of an op that always is.
inline bool always(const Graph&, const Op&) {
  return true;
}
/// The op's work is done on the host, by its glue.
bool runs_on_host(const Graph& graph, const Op& op);
/// One of its inputs and outputs is of bf16.
bool stores_bf16(const Graph& graph, const Op& op);
/// Inputs that are there and that the op's glue, or who runs the collective, reads on the host.
std::vector<TensorId> host_inputs(const Graph& graph, const Op& op);

class OpTable {
 public:
  explicit OpTable(std::vector<const OpDef*> defs) : defs_(std::move(defs)) {}
  /// Throws UserError with the nearest name when there is none.
  OpKind kind(std::string_view name) const;
  /// Throws MOE_CHECK's error when there is none.
  const OpDef& basic(BasicOp which) const;
  const OpDef& def(OpKind kind) const { return *defs_[kind.index()]; }
  std::span<const OpDef* const> defs() const { return defs_; }

 private:
  std::vector<const OpDef*> defs_;
};

/// The (output, input) pairs of this op that exist and may share storage.
std::vector<std::pair<int, int>> alias_pairs(const Graph& graph, const Op& op);

/// Inputs that are there and that the op overwrites in place.
std::vector<int> mutated_inputs(const Graph& graph, const Op& op);

/// What the op joins in one storage.
std::vector<Piece> pieces(const Graph& graph, const Op& op);
/// The op writes nothing: all of its outputs lie in the storage of its inputs, or the reverse.
bool is_view(const Graph& graph, const Op& op);

/// "<op>", "<op>:1", ...: the name of an op's output.
std::string output_name(const std::string& op, size_t i);
/// What the outputs of an op are: gradients in the backward, activations otherwise.
TensorKind usual_tensor_kind(Phase phase);

/// Who meets in a collective op: attrs group (members; all ranks unless given) and stride (1).
/// Throws UserError naming op and attributes unless their product divides the ranks.
Group group_of(const Graph& graph, const Op& op);
/// Which of them: attrs round (0) and rounds (1), as Round has them; to="source" is the way back of
/// the same round. Throws UserError naming op and attributes where they do not fit the group.
Round round_of(const Graph& graph, const Op& op);
/// The attributes that say so; none where the group is all ranks.
Attrs group_attrs(const Group& group, int64_t num_ranks);

// What an op is. False of one that was removed.
bool is(const Graph& graph, OpId op, MoeOp which);
bool is(const Graph& graph, OpId op, BasicOp which);
bool carries(const Graph& graph, OpId op, Payload which);

/// The place of the first operand of this role; none: nullopt.
std::optional<size_t> place_of(const std::vector<Operand>& operands, Role role);
/// The op's input or output of this role; invalid: it has none, or the place is empty.
TensorId input_of(const Graph& graph, const Op& op, Role role);
TensorId output_of(const Graph& graph, const Op& op, Role role);
/// Puts `tensor` (invalid: nothing) in the place of this role. Requires: the op has it.
void set_input(Graph& graph, OpId op, Role role, TensorId tensor);
/// The operand that input i of this very op is; null: it takes fewer.
const Operand* input_operand(const OpDef& def, const Op& op, size_t i);

/// Throws UserError when the op has too few or too many inputs for its kind, or one that is
/// required is absent or not a tensor of the graph.
void check_inputs(const Graph& graph, const Op& op);
/// Of an op that its shape rule has passed. Throws MOE_CHECK's error naming the op's kind unless
/// that many outputs, and what its integer inputs mean, are declared.
void check_made(const Graph& graph, const Op& op, size_t num_outputs);
/// Throws MOE_CHECK's error naming the op and what is missing or contradicts itself in its
/// definition.
void check_declared(const OpTable& table);

}  // namespace moe
