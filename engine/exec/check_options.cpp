#include "engine/exec/check_options.h"

#include "engine/base/errors.h"
#include "engine/comm/job/processes.h"
#include "engine/exec/machine_memory.h"
#include "engine/graph/op_def.h"
#include "engine/ops/swap_in.h"

namespace moe {
namespace {

void check_processes(const Plan& plan, const RunOptions& options) {
  if (options.processes->size() != plan.num_ranks()) {
    throw user_error(
        "ranks: the plan has {} ranks, but {} processes of one rank each were started; start one "
        "process per rank: mpirun -n {}",
        plan.num_ranks(), options.processes->size(), plan.num_ranks());
  }
  if (options.emulate_link) {
    throw user_error(
        "link: the emulated link works within one process only, but {} processes were started; "
        "omit the link, or start the program without a launcher",
        options.processes->size());
  }
}

void check_static_rows(const Graph& graph) {
  for (const OpId op : graph.op_ids()) {
    if (!is(graph, op, MoeOp::kPlace)) continue;
    const int64_t rows = attr_int(graph.op(op), "static_rows");
    if (rows == 0) continue;
    throw user_error(
        "{}: static_rows = {} is possible in simulations only: an execution computes the rows that "
        "have a token; omit static_rows to execute this system",
        attr_string(graph.op(op), "stage"), rows);
  }
}

void check_pace(const RunOptions& options) {
  if (!(options.pace >= 1 && options.pace <= 1000)) {
    throw user_error("pace: {} is not allowed; give 1 to 1000, or 0 for none", options.pace);
  }
  if (options.processes != nullptr) {
    throw user_error(
        "pace: {} needs ranks that are threads of one process, but {} processes were started; omit "
        "the field, or start the program without a launcher",
        options.pace, options.processes->size());
  }
  if (!options.emulate_link) {
    throw user_error(
        "pace: {} needs an emulated link, since a transfer in memory cannot be slowed down; give a "
        "link too, or omit the field",
        options.pace);
  }
}

}  // namespace

void check_options(const Plan& plan, const RunOptions& options, Bytes of_host) {
  if (!options.data)
    throw user_error(
        "data: it is not set, but a run needs it; set a function that fills token ids and targets");
  if (options.steps < 0)
    throw user_error("steps: {} is negative; allowed: 0 or more", options.steps);
  const TrainOptions& train = options.train;
  if (train.eval_batches > 0 && !train.eval_data) {
    throw user_error("eval_batches = {} needs data to evaluate on, but eval_data is not set",
                     train.eval_batches);
  }
  if (options.infer.popularity) {
    ops::check_popularity(plan.graph, plan.spec.model->num_moe_layers(), *options.infer.popularity);
  }
  check_static_rows(plan.graph);
  if (options.emulate_link && plan.spec.cluster.num_devices() != plan.num_ranks()) {
    throw user_error(
        "link: the cluster of the emulated link has {} devices, but the plan has {} ranks; the "
        "numbers must be equal",
        plan.spec.cluster.num_devices(), plan.num_ranks());
  }
  if (options.pace != 0) check_pace(options);
  if (options.processes != nullptr) check_processes(plan, options);
  const int64_t here =
      options.processes != nullptr ? options.processes->size_here() : plan.num_ranks();
  const double needed = static_cast<double>(of_host) * static_cast<double>(here);
  const AvailableMemory available = available_memory();
  if (needed > static_cast<double>(available.bytes)) {
    throw user_error(
        "{} ranks need {:.1f} GiB of host memory, but this process may allocate only {:.1f} GiB "
        "more, limited by {}",
        here, needed / 0x1p30, static_cast<double>(available.bytes) / 0x1p30, available.limited_by);
  }
}

}  // namespace moe
