#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/op_table.h"

namespace moe {
namespace {

const char* collective_name(Collective collective) {
  switch (collective) {
    case Collective::kNone:
      return "none";
    case Collective::kAllToAll:
      return "all-to-all";
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kExperts:
      return "experts";
    case Collective::kShift:
      return "shift";
    case Collective::kHandoff:
      return "handoff";
  }
  return "";
}

/// Returns the name of the collective in tables of measured times; "": they do not have it.
const char* measured_name(Collective collective) {
  switch (collective) {
    case Collective::kAllToAll:
      return measured::kAllToAll;
    case Collective::kAllReduce:
      return measured::kAllReduce;
    case Collective::kReduceScatter:
      return measured::kReduceScatter;
    case Collective::kAllGather:
      return measured::kAllGather;
    case Collective::kNone:
    case Collective::kExperts:
    case Collective::kShift:
    case Collective::kHandoff:
      break;
  }
  return "";
}

void require_rate(const char* field, double value) {
  if (!(value > 0)) throw user_error("cluster.device.{} = {}, allowed: above 0", field, value);
}

void check(const OffloadTimes& times) {
  for (const auto& [name, ns] : {std::pair("place", times.place_ns),
                                 {"resume", times.resume_ns},
                                 {"rerun", times.rerun_ns}}) {
    checked_ns(ns.value_or(0), [name] { return fmt::format("inference.{}_ms", name); });
  }
  if (times.host_bytes_per_s && !(*times.host_bytes_per_s >= 1)) {
    throw user_error("inference.host_bytes_per_s = {}, allowed: at least 1",
                     *times.host_bytes_per_s);
  }
}

/// Returns the time for `amount` (flops, bytes) at the rate `per_second`, rounded up to whole ns.
double rounded_ns(double amount, double per_second) {
  return std::ceil(amount * kNsPerSecond / per_second);
}

/// Returns, for error messages, the op's flops or its bytes, whichever take longer, and their rate.
std::string slow_op(const Device& device, const Work& work, const std::string& name) {
  const double rate = work.gemm() ? device.gemm_flops_per_s : device.vector_flops_per_s;
  if (work.bytes / device.memory_bytes_per_s > work.flops / rate) {
    return fmt::format("op '{}': {:g} bytes with cluster.device.memory_bytes_per_s = {:g}", name,
                       work.bytes, device.memory_bytes_per_s);
  }
  return fmt::format(
      "op '{}': {:g} flops with cluster.device.{} = {:g}", name, work.flops,
      work.gemm() ? "gemm_flops_per_s" : "vector_flops_per_s (gemm_flops_per_s unless given)",
      rate);
}

}  // namespace

RooflineCost::RooflineCost(Cluster cluster, WorkContext context,
                           std::map<Collective, InterpolatedTable> tables, OffloadTimes times,
                           std::string dtype, NarrowProducts narrow)
    : cluster_(std::move(cluster)),
      context_(context),
      tables_(std::move(tables)),
      offload_times_(times),
      dtype_(std::move(dtype)),
      narrow_(std::move(narrow)) {
  check(cluster_);
  check(offload_times_);
  products_ = ProductTimes(cluster_.device);
  if (!cluster_.collective_times.empty()) {
    collective_times_ = OpTables::open(cluster_.collective_times);
  }
  require_rate("gemm_flops_per_s", cluster_.device.gemm_flops_per_s);
  require_rate("vector_flops_per_s", cluster_.device.vector_flops_per_s);
  require_rate("memory_bytes_per_s", cluster_.device.memory_bytes_per_s);
  if (!narrow_.dtype.empty()) require_rate("gemm_flops_per_s.fp8", narrow_.flops_per_s);
}

Nanoseconds RooflineCost::routed_ns(const Graph& graph, OpId op, const RoutedWork& routed) const {
  const OpDef& def = graph.def(op);
  if (is_view(graph, graph.op(op))) return 0;
  if (def.collective != Collective::kNone) {
    return collective_time(graph, op, routed);
  }
  if (const auto ns = offload_ns(graph, op, routed.work)) return *ns;
  const Device& device = cluster_.device;
  const Work work = work_of(graph, graph.op(op), routed.work);
  const bool narrow = !narrow_dtype(graph, graph.op(op), work.matrix).empty();
  const double rate = !work.gemm() ? device.vector_flops_per_s
                      : narrow     ? narrow_.flops_per_s
                                   : device.gemm_flops_per_s;
  std::optional<Measured> found = measured_product(graph, graph.op(op), work);
  double product = found ? std::ceil(found->ns) : rounded_ns(work.flops, rate);
  if (!found && wide(graph, graph.op(op))) {
    const std::optional<Measured> narrow = in_tables("bf16", work);
    if (narrow && narrow->ns > product) found = narrow, product = std::ceil(narrow->ns);
  }
  const double memory_rate =
      device.memory_bytes_per_s * (work.gemm() ? 1 : memory_share(graph, op));
  const double memory = rounded_ns(work.bytes, memory_rate);
  const double ns = std::max(product, memory) + std::ceil(work.seconds * kNsPerSecond);
  const auto what = [&] {
    const std::string& name = graph.op(op).name;
    if (!found || memory > product) return slow_op(device, work, name);
    return fmt::format("op '{}', by measured times of {},", name, *found->gpu);
  };
  return checked_ns(checked_ns(ns, what) + device.launch_ns, what);
}

Nanoseconds RooflineCost::collective_time(const Graph& graph, OpId op,
                                          const RoutedWork& routed) const {
  const std::optional<Measured> found = measured_collective(graph, op, routed);
  if (!found) return collective_ns(cluster_, graph, op, routed);
  return checked_ns(found->ns, [&] {
    return fmt::format("op '{}', by measured times of {:g} bytes,", graph.op(op).name,
                       payload_bytes(graph, op, routed.work));
  });
}

TimeSource RooflineCost::time_source(const Graph& graph, OpId op) const {
  if (is_view(graph, graph.op(op))) return TimeSource::kModel;
  const OpDef& def = graph.def(op);
  const std::optional<Measured> found =
      def.collective != Collective::kNone
          ? measured_collective(graph, op, {context_})
          : measured_product(graph, graph.op(op), def.work(graph, graph.op(op), context_));
  if (!found) return TimeSource::kModel;
  return found->extrapolated ? TimeSource::kExtrapolated : TimeSource::kMeasured;
}

std::string RooflineCost::algorithm(const Graph& graph, OpId op) const {
  const std::string name = CostModel::algorithm(graph, op);
  return !name.empty() && measured_collective(graph, op, {context_}) ? "measured" : name;
}

/// Returns the collective's time by tables of measured times; nullopt: none has it.
std::optional<RooflineCost::Measured> RooflineCost::measured_collective(
    const Graph& graph, OpId op, const RoutedWork& routed) const {
  const Collective collective = graph.def(op).collective;
  const auto table = tables_.find(is_half(collective) ? Collective::kAllReduce : collective);
  const Group group = group_of(graph, graph.op(op));
  const bool whole = round_of(graph, graph.op(op)).of == 1;
  const double bytes = payload_bytes(graph, op, routed.work);
  if (table != tables_.end() && group.size == graph.num_ranks && whole) {
    const auto ns = static_cast<double>(table->second.at(bytes));
    const bool half = table->first != collective;  // nothing is measured of a half itself
    return Measured{half ? std::ceil(ns / 2) : ns, half};
  }
  // The tables are of ranks of one node, in which every group must lie.
  if (collective_times_ == nullptr || !whole || group.size < 2 || bytes <= 0 ||
      collective == Collective::kHandoff ||
      cluster_.devices_per_node % (group.size * group.stride) != 0) {
    return std::nullopt;
  }
  const OpGrid* const grid = collective_times_->find(measured_name(collective), "bf16");
  if (grid == nullptr) return std::nullopt;
  const OpTime time = grid->at(std::array{static_cast<double>(group.size), bytes});
  if (routed.bytes == nullptr && routed.steps == nullptr) {
    return Measured{std::ceil(time.ns), time.extrapolated};
  }
  RoutedWork even = routed;
  even.bytes = nullptr, even.steps = nullptr;
  const auto closed = [&](const RoutedWork& work) {
    return static_cast<double>(collective_ns(cluster_, graph, op, work));
  };
  return Measured{std::ceil(time.ns * closed(routed) / closed(even)), true};
}

/// Returns the measured time in ns of the op's matrix products; nullopt: there is none.
std::optional<RooflineCost::Measured> RooflineCost::measured_product(const Graph& graph,
                                                                     const Op& op,
                                                                     const Work& work) const {
  if (!work.gemm() || (products_.alone() == nullptr && products_.in_step() == nullptr)) {
    return std::nullopt;
  }
  const std::string narrow = narrow_dtype(graph, op, work.matrix);
  const Bytes element = dtype_bytes(graph.tensor(op.inputs[0]).dtype);
  if (element != 2 && element != 4) return std::nullopt;
  auto found = in_tables(!narrow.empty()    ? narrow.c_str()
                         : element == 2     ? "bf16"
                         : dtype_ == "tf32" ? "tf32"
                                            : "f32",
                         work);
  const double ratio = cluster_.device.op_times_ratio;
  if (ratio == 0) return found;
  if (!found && narrow.empty()) found = in_tables("bf16", work);
  if (found) found->ns *= ratio, found->extrapolated = true;
  return found;
}

std::string RooflineCost::narrow_dtype(const Graph& graph, const Op& op,
                                       const MatrixWork& work) const {
  using Kind = MatrixWork::Kind;
  // Products of attention without a fused kernel are GEMMs, too, but none of rounded operands.
  const bool linear =
      work.kind == Kind::kExperts || (work.kind == Kind::kGemm && !graph.def(op).rounds.empty());
  const bool kept = op.segment == Segment::kGate || op.segment == Segment::kHead;
  return linear && !kept ? narrow_.dtype : "";
}

/// The op's work, of whose operands a product in fp8 reads copies of one byte per number.
Work RooflineCost::work_of(const Graph& graph, const Op& op, const WorkContext& context) const {
  Work work = graph.def(op).work(graph, op, context);
  if (narrow_dtype(graph, op, work.matrix).empty()) return work;
  double all = 0, saved = 0;
  for (const auto* tensors : {&op.inputs, &op.outputs}) {
    for (size_t i = 0; i < tensors->size(); ++i) {
      if (!(*tensors)[i].valid()) continue;
      const auto bytes = static_cast<double>(graph.bytes((*tensors)[i]));
      const auto width = static_cast<double>(dtype_bytes(graph.tensor((*tensors)[i]).dtype));
      all += bytes;
      if (tensors == &op.inputs && i < 2) saved += bytes * (1 - 1 / width);
    }
  }
  work.bytes *= 1 - saved / all;
  return work;
}

/// Whether the op multiplies numbers of four bytes because the model's are so wide.
bool RooflineCost::wide(const Graph& graph, const Op& op) const {
  return (dtype_ == "f32" || dtype_ == "tf32") && !op.inputs.empty() &&
         dtype_bytes(graph.tensor(op.inputs[0]).dtype) == 4;
}

/// As measured_product(), in the tables of one element type.
std::optional<RooflineCost::Measured> RooflineCost::in_tables(const char* dtype,
                                                              const Work& work) const {
  const std::optional<ProductTime> found = products_.at(work.matrix, dtype);
  if (!found) return std::nullopt;
  return Measured{found->time.ns, found->time.extrapolated, &found->tables->gpu()};
}

/// Returns the time that the user gave for the op in offload_times_; nullopt if none was given.
std::optional<Nanoseconds> RooflineCost::offload_ns(const Graph& graph, OpId op,
                                                    const WorkContext& context) const {
  switch (graph.def(op).moe) {
    case MoeOp::kPlaceExpected:
      return offload_times_.place_ns;
    case MoeOp::kFineTune: {
      const std::optional<Nanoseconds> all =
          context.again ? offload_times_.rerun_ns : offload_times_.resume_ns;
      if (!all) return context.again ? offload_times_.place_ns : std::nullopt;
      const TensorId loads = input_of(graph, graph.op(op), Role::kLoads);
      return std::max<Nanoseconds>(0, *all - op_ns(graph, graph.producers()[loads.index()]));
    }
    case MoeOp::kSwapIn: {
      if (!offload_times_.host_bytes_per_s) return std::nullopt;
      const double bytes = graph.def(op).work(graph, graph.op(op), context).host_bytes;
      return checked_ns(rounded_ns(bytes, *offload_times_.host_bytes_per_s), [&] {
        return fmt::format("op '{}': copying {:g} bytes with host_bytes_per_s = {:g}",
                           graph.op(op).name, bytes, *offload_times_.host_bytes_per_s);
      });
    }
    default:
      return std::nullopt;
  }
}

std::optional<NetworkOp> RooflineCost::transfer(const Graph& graph, OpId op) const {
  return transfer_on(cluster_, graph, op, {context_});
}

CoreSharing RooflineCost::sharing(const Graph& graph, OpId op) const {
  if (graph.def(op).collective == Collective::kNone) return {};
  return {.slowdown = cluster_.overlap_slowdown};
}

Nanoseconds NoTimes::op_ns(const Graph& graph, OpId op) const {
  MOE_CHECK(false,
            "a pass or policy uses the time of op '{}', but does not declare in its definition "
            "that it reads times (Reads::kTimes), so none were measured",
            graph.op(op).name);
}

std::string RooflineCost::describe() const {
  const Device& device = cluster_.device;
  std::string text;
  for (const auto& [tables, where] :
       {std::pair(products_.in_step(), " inside a training step"), {products_.alone(), ""}}) {
    if (tables != nullptr) {
      text += fmt::format("measured op times of {}{}, else ", tables->gpu(), where);
    }
  }
  text += fmt::format(
      "roofline of {} on {}: {}GEMM {:g} TFLOP/s, vector {:g} TFLOP/s, memory {:g} GB/s, launch "
      "{:g} us, fill {:g}; collectives {}by closed form",
      device.name, cluster_.name, dtype_.empty() ? "" : dtype_ + " ",
      device.gemm_flops_per_s / 1e12, device.vector_flops_per_s / 1e12,
      device.memory_bytes_per_s / 1e9, static_cast<double>(device.launch_ns) / 1e3,
      context_.slot_occupancy,
      collective_times_ != nullptr && cluster_.devices_per_node > 1
          ? fmt::format("{}with even pieces as measured on {}, else ",
                        cluster_.nodes > 1 ? "inside a node " : "", collective_times_->gpu())
          : "");
  const OverlapSlowdown& slowdown = cluster_.overlap_slowdown;
  if (slowdown.gemm > 1 || slowdown.memory > 1 || slowdown.transfer > 1) {
    text += fmt::format(", compute beside them: GEMMs x{:g}, others x{:g}, they x{:g}",
                        slowdown.gemm, slowdown.memory, slowdown.transfer);
  }
  if (!narrow_.dtype.empty()) {
    text += fmt::format(", linears and experts in {} (where no table has them {:g} TFLOP/s)",
                        narrow_.dtype, narrow_.flops_per_s / 1e12);
  }
  for (const auto& [collective, table] : tables_) {
    text += fmt::format(", {} by table", collective_name(collective));
  }
  return text;
}

}  // namespace moe
