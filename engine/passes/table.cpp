// The table of all passes, in order, with the reason for each position.
#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/passes/capacity/pipemoe_degree.h"
#include "engine/passes/device/fuse_gelu.h"
#include "engine/passes/pass.h"
#include "engine/placement/policy.h"

namespace moe {

// Each pass is defined in the file of its name, with its source and equations. A new pass needs a
// file, its name in this list and an entry in the table below.
using GraphPass = Graph(Graph graph, const PassContext& context);
using SchedulePass = Schedule(const Graph& graph, Schedule schedule, const PassContext& context);
// clang-format off
#define MOE_GRAPH_PASSES(X) \
  X(add_placement_updates) X(capacity_pipeline) X(clip_gradients) X(dispatched) \
  X(fastermoe_pipeline) X(hierarchical_a2a) X(irregular_a2a) X(join_row_parts) \
  X(lina_inference) X(micro_ops) X(number_packed_rows) X(own_attention) X(pack_rows) \
  X(pad_logits) X(partition) X(pipemoe) X(place_by_policy) X(recompute_blocks) \
  X(refetch_copies) X(round_once) X(used_rows) X(weights_at_experts) X(zero)
#define MOE_SCHEDULE_PASSES(X) \
  X(blocking_a2a) X(chunked) X(dw_schedule) X(fixed) X(hide_a2a) X(priority) \
  X(prophet_schedule) X(serial)
// clang-format on
#define MOE_DECLARE_PASS(pass) GraphPass pass;
MOE_GRAPH_PASSES(MOE_DECLARE_PASS)
#undef MOE_DECLARE_PASS
#define MOE_DECLARE_PASS(pass) SchedulePass pass;
MOE_SCHEDULE_PASSES(MOE_DECLARE_PASS)
#undef MOE_DECLARE_PASS

namespace {

/// Throws InternalError for an entry that lacks a field and for a listed pass without an entry.
void check_passes(const std::vector<PassDef>& passes) {
  check_rows("passes", passes);
  for (const PassDef& pass : passes) {
    MOE_CHECK(pass.kind != StageKind::kUnset,
              "pass '{}': PassDef::kind is kUnset, but must be one of the other kinds", pass.name);
    const bool edits = schedules(pass.kind);
    MOE_CHECK((pass.schedule != nullptr) == edits && (pass.transform == nullptr) == edits,
              "pass '{}' must set PassDef::schedule if its kind edits a schedule, else "
              "PassDef::transform, and not the other one",
              pass.name);
  }
  const auto has_row = [&](auto member, auto function) {
    return std::any_of(passes.begin(), passes.end(),
                       [&](const PassDef& pass) { return pass.*member == function; });
  };
#define MOE_CHECK_ROW(pass)                      \
  MOE_CHECK(has_row(&PassDef::transform, &pass), \
            "the table of passes lacks an entry whose function `transform` is '{}'", #pass);
  MOE_GRAPH_PASSES(MOE_CHECK_ROW)
#undef MOE_CHECK_ROW
#define MOE_CHECK_ROW(pass)                     \
  MOE_CHECK(has_row(&PassDef::schedule, &pass), \
            "the table of passes lacks an entry whose function `schedule` is '{}'", #pass);
  MOE_SCHEDULE_PASSES(MOE_CHECK_ROW)
#undef MOE_CHECK_ROW
}

/// Declares an option that is one of the strings `allowed`.
OptionSpec choice_option(std::string name, std::string default_value,
                         std::vector<std::string> allowed, std::string doc) {
  return {std::move(name), std::move(default_value), std::move(doc), 0, 0, std::move(allowed)};
}

/// Returns the pass that runs a placement policy. Its options: those that the passes of all
/// policies share, then those of the policy.
PassDef placement_pass(const PlacementPolicy& policy) {
  const PlacementDefaults& defaults = policy.defaults;
  PassDef pass{.name = policy.pass(), .kind = StageKind::kPlacement, .doc = policy.doc};
  pass.one_exchange = true;
  pass.options = {
      choice_option("use", defaults.now ? "now" : "next", {"now", "next"},
                    "when a placement takes effect: now, in the layer and step from whose loads it "
                    "is made, or next, from the next step on"),
      {"every", 1.0, "steps from one placement to the next", 1, 1e9},
      {"shadows", static_cast<double>(defaults.shadows),
       "slots per device for copies that last one step; each takes the memory of one expert", 0,
       4096},
      {"extra_residents", static_cast<double>(defaults.extra_residents),
       "slots per device for further resident experts, beyond experts / devices", 0, 4096},
      {"expected_copies", 1.0,
       "copies that a device is assumed to receive per step, for plans made before any run", 0,
       4096},
      {"plan_us", defaults.plan_us,
       "time of one plan of a layer in us, as measured or published; charged in simulations where "
       "the placement is made; an execution takes the time that it takes",
       0, 1e9},
      {.name = "split",
       .default_value = false,
       .doc = "copies are sent in two transfers: as many as the compute between MoE layers hides, "
              "and the rest (Pro-Prophet's sub-operators)",
       .reads = Reads::kRates},
  };
  pass.options.insert(pass.options.end(), policy.options.begin(), policy.options.end());
  pass.transform = place_by_policy;
  pass.reads = policy.reads;
  return pass;
}

bool always(const StepSpec&) {
  return true;
}
bool trains(const StepSpec& step) {
  return !step.inference;
}

/// All passes except those of the placement policies.
const std::vector<PassDef>& other_passes() {
  // Passes of one kind run in this order, unless their needs ask for another.
  static const std::vector<PassDef> passes = {
      {.name = "lina_inference",
       .kind = StageKind::kPlacement,
       .doc = "inference: copies experts from host memory to as many devices as the estimated "
              "loads need (Lina)",
       .options =
           {{"path", 3.0,
             "number of layers whose choices form a token's path, from which the next layer is "
             "estimated",
             1, 62},
            {"cap", 4.0, "the most experts per device", 1, 65536},
            {"estimation", true,
             "false: every layer is placed by the counts of its gate, which blocks"},
            {"fine_tuning", true,
             "whether a layer is placed again when its counts differ from the estimate"},
            {"normalise", false,
             "whether the estimated numbers of devices are scaled to the existing devices"},
            choice_option("compare", "list", {"list", "set"},
                          "how the most popular experts, estimated and chosen, are compared: as "
                          "lists or as sets"),
            {"shorter", false,
             "true: layers from the second on are estimated, the early ones by shorter paths"},
            choice_option("share", "even", {"even", "weighted"},
                          "how an expert's tokens are shared among its replicas: evenly (paper), "
                          "or in proportion to the shares that the placement planned"),
            integer_option("seed", 0, 0, 9007199254740992,
                           "seed of the random devices of experts without estimated tokens")},
       .transform = lina_inference,
       .inference_only = true,
       .one_exchange = true},
      // kForward: passes before autodiff, so that the backward follows without a pass of its own.
      // irregular_a2a first: used_rows then finds its exchange_counts op and shares it.
      {.name = "irregular_a2a",
       .kind = StageKind::kForward,
       .doc = "all-to-alls carry real rows only, after an exchange of counts (Lancet)",
       .transform = irregular_a2a,
       .gives = {Fact::kCounts}},
      {.name = "used_rows",
       .kind = StageKind::kForward,
       .doc = "experts compute only the rows that hold a token",
       .transform = used_rows,
       .gives = {Fact::kCounts}},
      {.name = "capacity_pipeline",
       .kind = StageKind::kForward,
       .doc =
           "cuts 'all-to-all, experts, all-to-all' into parts along the capacity (Tutel, PipeMoE)",
       .options = {{"degree", 2.0, "number of parts; 1 leaves the graph as it is", 1, 64, {}, 1}},
       .transform = capacity_pipeline,
       .needs = {Fact::kCounts, Fact::kRounds},
       .gives = {Fact::kParts},
       .one_exchange = true},
      {.name = "pipemoe",
       .kind = StageKind::kForward,
       .doc =
           "like capacity_pipeline, but each MoE layer has the degree that is best by the times of "
           "transfers and experts in parts (PipeMoE)",
       .options =
           {{"alpha_a", -1.0, "start-up of a transfer in s; -1 here and in the next three: fitted",
             -1, 1e9},
            {"beta_a", -1.0, "s per byte of a rank's all-to-all", -1, 1e9},
            {"alpha_e", -1.0, "start-up of the experts of a part, both GEMMs, in s", -1, 1e9},
            {"beta_e", -1.0, "s per row, input feature and inner feature of the experts", -1, 1e9},
            {"max_degree", 64.0, "the most parts; the capacity of a layer is a further limit", 1,
             65536},
            {"degrees", std::string(), "the allowed degrees, such as '1,2,4,8'; empty: all"},
            choice_option("objective", "forward", {"forward", "step"},
                          "the time to minimize: that of the forward (paper) or of the step, with "
                          "the backward"),
            choice_option("method", "exact", degree_methods(),
                          "how the degree is found: exact, brute, or Algorithm 1: paper (as "
                          "printed), paper_fixed")},
       .transform = pipemoe,
       .reads = Reads::kTimes,
       .needs = {Fact::kCounts, Fact::kRounds},
       .gives = {Fact::kParts},
       .one_exchange = true},
      {.name = "micro_ops",
       .kind = StageKind::kForward,
       .doc = "like capacity_pipeline, but each layer has parts of a given number of bytes (Lina)",
       .options = {{"bytes", 30e6,
                    "the most bytes of rows that a rank exchanges in a part (paper: 30 MB)", 1,
                    1e12}},
       .transform = micro_ops,
       .needs = {Fact::kCounts, Fact::kRounds},
       .gives = {Fact::kParts},
       .one_exchange = true},
      {.name = "fastermoe_pipeline",
       .kind = StageKind::kForward,
       .doc = "all-to-alls in rounds between groups of workers, experts round by round (FasterMoE)",
       .options =
           {{.name = "groups",
             .default_value = 0.0,
             .doc = "number of groups and of rounds; 0: the number of nodes, or of ranks on one "
                    "node (FastMoE's default: ranks / 4)",
             .hi = 65536,
             .off = 1}},
       .transform = fastermoe_pipeline,
       .needs = {Fact::kCounts},
       .gives = {Fact::kRounds},
       .one_exchange = true},
      // hierarchical_a2a accepts all-to-alls that are cut or irregular, while a pass after it would
      // find two all-to-alls in place of one.
      {.name = "hierarchical_a2a",
       .kind = StageKind::kForward,
       .doc = "all-to-alls in two steps, inside nodes and between them (Tutel, DeepSpeed-MoE)",
       .transform = hierarchical_a2a,
       .needs = {Fact::kCounts, Fact::kRounds, Fact::kParts},
       .gives = {Fact::kSteps},
       .one_exchange = true},
      // After all passes that cut or count rows, whose layers it reads and does not cut itself.
      {.name = "weights_at_experts",
       .kind = StageKind::kForward,
       .doc = "gated experts multiply their activation by the routing weights, which are sent "
              "beside the rows, so that rows that come back are not kept (Megatron-LM)",
       .transform = weights_at_experts,
       .needs = {Fact::kCounts, Fact::kRounds, Fact::kParts, Fact::kSteps}},
      // Last of all on the forward graph, whose exchanges it finds as they will be; the backward
      // follows from them.
      {.name = "dispatched",
       .kind = StageKind::kForward,
       .doc = "lets the system's dispatcher move rows in place of all-to-alls",
       .options = {{"dispatcher", std::string(), "its name"},
                   {"shares", false,
                    "whether a row stands for several choices, so that experts' "
                    "ranks apply the weights"},
                   {"to_all", false, "whether all rows go to all ranks"}},
       .transform = dispatched,
       .needs = {Fact::kCounts, Fact::kRounds, Fact::kParts, Fact::kSteps},
       .one_exchange = true,
       .runs = [](const StepSpec&) { return false; }},  // make_plan() lists it
      // kBackward: what every plan has, after the system's passes on the forward graph.
      {.name = "pack_rows",
       .kind = StageKind::kBackward,
       .doc = "packs rows in slots where all ops of a layer use only those with a token",
       .transform = pack_rows,
       .runs = always},
      {.name = "backward",
       .kind = StageKind::kBackward,
       .doc = "adds gradients, their all-reduces and the updates",
       .transform =
           [](Graph graph, const PassContext& with) {
             add_backward_and_update(graph, with.step.optimizer, with.step.sync, with.model,
                                     with.model.shared, with.model.stage);
             return graph;
           },
       .runs = trains},
      {.name = "join_row_parts",
       .kind = StageKind::kBackward,
       .doc = "puts parts of rows in use that are cut into one storage",
       .transform = join_row_parts,
       .runs = always},
      {.name = "placement_updates",
       .kind = StageKind::kBackward,
       .doc = "moves experts between steps, where a placement is for the next step",
       .transform = add_placement_updates,
       .runs = trains},
      // kStep. zero first, so that the others see the sums and updates that there will be.
      {.name = "zero",
       .kind = StageKind::kStep,
       .doc = "shards the optimizer's states over the ranks that hold the same parameters (ZeRO, "
              "arXiv 1910.02054)",
       .options = {{.name = "stage",
                    .default_value = 1.0,
                    .doc = "1: a reduce-scatter and an all-gather take the place of each "
                           "all-reduce of gradients, and each rank updates a slice; 0: every rank "
                           "holds the states of all its parameters",
                    .hi = 1,
                    .off = 0,
                    .is_integer = true}},
       .transform = zero,
       .rehearsed = true,
       .states_note = "sharded where zero = 1"},
      // After zero, whose slices it measures, and which looks for updates that read sums.
      {.name = "clip_gradients",
       .kind = StageKind::kStep,
       .doc = "scales gradients down to the optimizer's clip_norm",
       .transform = clip_gradients,
       .runs = [](const StepSpec& step) { return trains(step) && clip_norm(step.optimizer) > 0; }},
      // The backward exists already and is not cut; it reads the joined outputs.
      {.name = "partition",
       .kind = StageKind::kStep,
       .doc = "cuts ranges of the forward around MoE layers into pipelined parts of the batch "
              "(Lancet)",
       .options =
           {{"max_parts", 8.0, "rho: the most parts of a range", 1, 64},
            {"groups", 5.0,
             "gamma: number of groups of ops between two MoE layers; ranges begin and end between "
             "groups; 0: each op is a group",
             0, 1000},
            {"max_range", 1.0,
             "iota: the longest range, in units of the time between two MoE layers, plus a group",
             0, 4},
            {.name = "parts",
             .default_value = 0.0,
             .doc = "parts of every range; 0: the fastest number, 1: no cut",
             .hi = 64,
             .off = 1,
             .replaces = {"max_parts"}},
            {.name = "before",
             .default_value = -1.0,
             .doc = "number of ops before dispatch in a layer's range; -1: the fastest",
             .lo = -1,
             .hi = 1e6,
             .replaces = {"groups", "max_range"}},
            {"after", -1.0,
             "number of ops after combine in a layer's range, up to the loss; -1: the fastest", -1,
             1e6}},
       .transform = partition,
       .reads = Reads::kTimes,
       .gives = {Fact::kParts}},
      {.name = "number_packed_rows",
       .kind = StageKind::kStep,
       .doc = "gives the slots of packed rows their numbers",
       .transform = number_packed_rows,
       .gives = {Fact::kSlots},
       .runs = always},
      {.name = "recompute",
       .kind = StageKind::kStep,
       .doc = "activations are made again in the backward instead of kept (Chen et al. 2016)",
       .options = {choice_option(
           "what", "blocks",
           {"blocks", "norms", "activations", "attention", "experts", "norms+activations",
            "norms+experts"},
           "which: those of each transformer block, of which only the input stays "
           "(blocks), or what norms, activation functions (activations) and "
           "attention give, and all between router and residual (experts)")},
       .transform = recompute_blocks,
       .needs = {Fact::kSlots}},
      {.name = "refetch_copies",
       .kind = StageKind::kStep,
       .doc = "copies of experts are made again for the backward of a micro-batch, since others "
              "use their slots meanwhile",
       .transform = refetch_copies,
       .needs = {Fact::kSlots},
       .runs = [](const StepSpec& step) { return trains(step) && step.in_flight; }},
      {.name = "fuse_gelu",
       .kind = StageKind::kDevice,
       .doc = "a product and its GELU are one op",
       .transform = [](Graph graph, const PassContext&) { return fuse_gelu(std::move(graph)); },
       .runs = [](const StepSpec& step) { return step.lowering.fuse_gelu; }},
      {.name = "round_once",
       .kind = StageKind::kDevice,
       .doc = "results in bfloat16 are rounded once",
       .transform = round_once,
       .runs = [](const StepSpec& step) { return step.lowering.round_once; }},
      {.name = "pad_logits",
       .kind = StageKind::kDevice,
       .doc = "rows of logits in bfloat16 are padded to a multiple of 64 numbers",
       .transform = pad_logits,
       .runs = [](const StepSpec& step) { return step.lowering.pad_logits; }},
      {.name = "own_attention",
       .kind = StageKind::kDevice,
       .doc = "attention runs by the project's own kernels",
       .transform = own_attention,
       .runs = [](const StepSpec& step) { return step.lowering.own_attention; }},
      // kSchedule: those that only forbid come first, so that the ones that choose an order choose
      // among what is left.
      {.name = "blocking_a2a",
       .kind = StageKind::kSchedule,
       .doc =
           "no compute runs during an all-to-all; all-reduces are not restricted (DeepSpeed-MoE)",
       .options = {{"experts", true,
                    "whether transfers of experts and of their gradients block compute, too"}},
       .schedule = blocking_a2a,
       .forbids = true},
      {.name = "fixed",
       .kind = StageKind::kSchedule,
       .doc = "all-reduces run only between the backward's pairs of all-to-alls (Lina's baseline "
              "Fixed)",
       .schedule = fixed,
       .forbids = true},
      {.name = "serial",
       .kind = StageKind::kSchedule,
       .doc = "one op after another in program order, no overlap (RAF)",
       .schedule = serial,
       .forbids = true},
      // dw_schedule before those that restrict the order further. If two of them contradict each
      // other, the error about the cycle names both stages.
      {.name = "dw_schedule",
       .kind = StageKind::kSchedule,
       .doc = "weight gradients run while an all-to-all is on the wire (Lancet, algorithm 1)",
       .options = {choice_option(
                       "overshoot", "allow", {"allow", "never"},
                       "whether the last dW may take longer than the rest of the all-to-all "
                       "that it hides (paper: allow)"),
                   choice_option(
                       "if_slower", "undo", {"undo", "keep"},
                       "what happens to an assignment that makes the simulated step longer: "
                       "undo (first without overshoot, then no assignment) or keep (paper)")},
       .schedule = dw_schedule,
       .reads = Reads::kTimes},
      // After dw_schedule: gradients of experts return once their dW ends, wherever dw_schedule has
      // put that dW.
      {.name = "prophet_schedule",
       .kind = StageKind::kSchedule,
       .doc = "planners run during all-to-alls, copies of experts and their gradients are sent "
              "during the compute of the neighbouring block (Pro-Prophet)",
       .schedule = prophet_schedule},
      {.name = "priority",
       .kind = StageKind::kSchedule,
       .doc = "one transfer at a time, all-to-alls before all-reduces (Lina)",
       .options = {{"hold", true,
                    "whether the backward's combine holds all-reduces back until its all-to-all is "
                    "posted"}},
       .schedule = priority},
      {.name = "chunked",
       .kind = StageKind::kSchedule,
       .doc = "transfers are cut into chunks, between which other transfers may run (Lina's "
              "micro-ops)",
       .options = {{"bytes", 30e6, "the most bytes of a chunk (paper: 30 MB)", 1, 1e12},
                   choice_option("which", "all_reduce", {"all_reduce", "all_to_all", "both"},
                                 "the transfers that are cut")},
       .schedule = chunked},
      // kPipeline.
      {.name = "hide_a2a",
       .kind = StageKind::kPipeline,
       .doc =
           "where the forward of a micro-batch runs beside the backward of another, each computes "
           "while the other's rows travel (Megatron-LM, DeepSeek-V3)",
       .options =
           {{.name = "search",
             .default_value = true,
             .doc = "whether a search looks for an order that, by the times of ops alone, is "
                    "shorter than that of Megatron-LM's combined_1f1b and DualPipe, in which the "
                    "two take turns between exchanges, the backward first",
             .reads = Reads::kTimes},
            {"delay_dw", true,
             "whether weight gradients may run later in their turn than where they are made"}},
       .schedule = hide_a2a,
       .against = {"blocking_a2a", "serial"}},
  };
  return passes;
}

}  // namespace

const std::vector<PassDef>& builtin_passes() {
  static const std::vector<PassDef> passes = [] {
    // Placement comes before the passes that cut all-to-alls, because it counts the rows of whole
    // all-to-alls for each slot.
    std::vector<PassDef> all;
    for (const PlacementPolicy& policy : builtin_policies()) all.push_back(placement_pass(policy));
    all.insert(all.end(), other_passes().begin(), other_passes().end());
    check_passes(all);
    return all;
  }();
  return passes;
}

const PassDef& builtin_pass(std::string_view name) {
  std::vector<std::string> names;
  for (const PassDef& pass : builtin_passes()) {
    if (pass.name == name) return pass;
    names.emplace_back(pass.name);
  }
  throw UserError(unknown_name("pass", name, std::move(names)));
}

}  // namespace moe
