#include "engine/profile/device_profiler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "engine/base/stop.h"
#include "engine/comm/communicator.h"
#include "engine/exec/device/comm.h"
#include "engine/exec/device/handles.h"
#include "engine/exec/device/ops.h"
#include "engine/graph/op_def.h"
#include "engine/profile/device_overlap.h"
#include "engine/profile/device_trial.h"

namespace moe {
namespace {

using kernels::DeviceTable;

// Clock rates and caches are in a steady state after this time.
constexpr Nanoseconds kWarmUp = 4'000'000;
constexpr int64_t kWarmUpBatches = 2;
// Target length of a batch, long compared with the time to start it.
constexpr Nanoseconds kBatch = 2'000'000;
constexpr int64_t kMostCalls = 32;
// How long the device sleeps while the host queues a batch: first value and limit. A GPU's queue
// holds about a thousand launches; a host that queues more must wait for the GPU, however long the
// sleep is.
constexpr Nanoseconds kFirstAhead = 200'000, kMostAhead = 20'000'000;
// Time from the begin of background transfers to the first call.
constexpr Nanoseconds kLead = 50'000;
// A background transfer must last as long as the calls. kFirstBeside is the first guess of this
// time; the transfer is made kLonger times longer each time it was too short, up to kMostShort
// times in a row.
constexpr Nanoseconds kFirstBeside = 5'000'000;
constexpr int64_t kLonger = 2, kMostShort = 6;
// Number of samples to keep of a very short op, taken evenly over the whole measurement.
constexpr size_t kMostSamples = 400;

/// Calls of one op by all ranks at the same time, in batches.
class DeviceCalls {
 public:
  /// `background`: transfers that run during the calls; null for none.
  DeviceCalls(const Graph& graph, OpId id, const ProfileOptions& options, const DeviceTable& device,
              BackgroundTransfers* background)
      : graph_(graph),
        id_(id),
        op_(graph.op(id)),
        what_("op " + op_.name),
        device_(device),
        collective_(graph.def(id).collective != Collective::kNone),
        work_(options.work),
        checks_(options.checked ? checked_on_device(graph, op_) : std::vector<TensorId>{}),
        background_(background),
        operands_(graph, id, options.work, options.ranks_beside, device),
        step_(device, DeviceStorage::Where::kDevice, sizeof(int64_t)),
        go_(device, false) {
    const Bytes scratch = collective_ ? 0 : device_scratch_bytes(graph, id, device);
    for (int64_t r = 0; r < options.ranks_beside; ++r) {
      scratch_.emplace_back(device, DeviceStorage::Where::kDevice, scratch);
      nonfinite_.emplace_back(device, DeviceStorage::Where::kDevice,
                              static_cast<Bytes>(checks_.size() * sizeof(int64_t)));
      streams_.emplace_back(device, collective_);  // same kind of stream as the executor's lanes
      over_.emplace_back(device, false);
    }
    for (int64_t c = 0; c < kMostCalls; ++c) {
      begins_.emplace_back(device, true);
      ends_.emplace_back(device, true);
    }
    if (collective_) comm_ = device_ranks(device, options.ranks_beside, 1, {});
    check_device(device, what_);
    operands_.fill(streams_[0].get());
    device.fill(step_.data(), 0, step_.size(), streams_[0].get());
    for (const DeviceStorage& first : nonfinite_) {
      device.fill(first.data(), kNoIndexByte, first.size(), streams_[0].get());
    }
    wait_for(device, over_[0].get(), streams_[0].get(), what_);
  }

  /// Runs a batch and returns the samples of its calls. Returns an empty vector if the batch is not
  /// valid, because the host did not queue fast enough or a background transfer ended before the
  /// calls. Returns nullopt if calls and background transfers never run at the same time.
  std::optional<std::vector<Nanoseconds>> batch() {
    const Nanoseconds queueing = queue_batch();
    for (size_t r = 0; r < streams_.size(); ++r) {
      wait_for(device_, over_[r].get(), streams_[r].get(), what_);
    }
    std::vector<Nanoseconds> samples;
    for (size_t c = 0; c < static_cast<size_t>(num_calls_); ++c) {
      const double ns = device_.elapsed_ns(begins_[c].get(), ends_[c].get());
      samples.push_back(std::max<Nanoseconds>(1, std::llround(ns)));
    }
    check_device(device_, what_);
    bool good = stayed_ahead(queueing);
    if (background_ != nullptr) {
      const kernels::Event begin = begins_[0].get(), end = ends_[samples.size() - 1].get();
      const bool covered = background_->covered(begin, end);
      good = good && covered;
      too_short_ = covered ? 0 : too_short_ + 1;
      if (too_short_ > kMostShort) return std::nullopt;
      longer_ = covered ? 1 : longer_ * kLonger;
      call_ns_ = std::llround(device_.elapsed_ns(begin, end)) / num_calls_ + 1;
    }
    size_next(queueing, samples[0]);
    return good ? samples : std::vector<Nanoseconds>{};
  }

 private:
  /// Queues a batch. Returns the time that the host needed.
  Nanoseconds queue_batch() {
    device_.sleep(ahead_, {}, streams_[0].get());
    const Nanoseconds begin = clock_ns();
    if (background_ != nullptr) {
      device_.record(go_.get(), streams_[0].get());
      const Nanoseconds calls = call_ns_ > 0 ? 2 * num_calls_ * call_ns_ : kFirstBeside;
      background_->queue(go_.get(), 2 * kLead + longer_ * calls);
      device_.sleep(kLead, {}, streams_[0].get());
    }
    device_.record(go_.get(), streams_[0].get());
    for (size_t r = 1; r < streams_.size(); ++r) device_.wait(streams_[r].get(), go_.get());
    for (size_t c = 0; c < static_cast<size_t>(num_calls_); ++c) {
      operands_.advance();
      if (collective_) {
        queue_collective(begins_[c].get(), ends_[c].get());
      } else {
        queue_compute(begins_[c].get(), ends_[c].get());
      }
    }
    return clock_ns() - begin;
  }

  bool stayed_ahead(Nanoseconds queueing) {
    if (queueing <= ahead_) return true;
    if (ahead_ < kMostAhead) return false;
    if (num_calls_ == 1) return true;  // the batch cannot be made smaller
    most_calls_ = num_calls_ / 2;
    return false;
  }

  /// Chooses the number of calls of the next batch, and how long the device sleeps while the host
  /// queues it. `queueing`: time in which the host queued this batch; `call`: time of one call on
  /// the device.
  void size_next(Nanoseconds queueing, Nanoseconds call) {
    const Nanoseconds twice = 2 * (queueing / num_calls_) + 1;
    const int64_t calls = std::min(kBatch / std::max<Nanoseconds>(call, 1), kMostAhead / twice);
    num_calls_ = std::clamp<int64_t>(calls, 1, most_calls_);
    ahead_ = std::clamp(num_calls_ * twice, kFirstAhead, kMostAhead);
  }

  void queue_compute(kernels::Event begin, kernels::Event end) {
    for (size_t r = 0; r < streams_.size(); ++r) {
      const kernels::Stream stream = streams_[r].get();
      if (r == 0) device_.record(begin, stream);
      const RankContext context = {
          .rank = static_cast<int64_t>(r),
          .num_ranks = graph_.num_ranks,
          .device_step = reinterpret_cast<const int64_t*>(step_.data()),
      };
      queue_op(graph_, id_, {operands_.inputs(r), operands_.outputs(r), scratch_[r].data()},
               context, device_, stream);
      finish(r, end);
    }
  }

  /// Queues an exchange whose destinations a placement decides: moves as much as in a step with
  /// balanced routing.
  void queue_placed(kernels::Event begin, kernels::Event end) {
    const Group group = group_of(graph_, op_);
    const EvenExchange exchange =
        even_exchange(graph_, id_, work_, group.size, element_bytes(device_));
    std::vector<DeviceMember> members;
    for (size_t r = 0; r < streams_.size(); ++r) {
      members.push_back({.rank = static_cast<int64_t>(r),
                         .stream = streams_[r].get(),
                         .group = group,
                         .send = static_cast<const std::byte*>(operands_.at(r, op_.inputs[0])),
                         .receive = static_cast<std::byte*>(operands_.at(r, op_.outputs[0])),
                         .pieces = &exchange.pieces});
    }
    move(members, begin);
    for (size_t r = 0; r < streams_.size(); ++r) {
      if (exchange.unused > 0) {
        device_.fill(members[r].receive + exchange.used, 0, exchange.unused, streams_[r].get());
      }
      finish(r, end);
    }
  }

  void move(const std::vector<DeviceMember>& members, kernels::Event begin) {
    const DeviceTransfer transfer = {op_.name, LaneId(0), members};
    comm_->meet(transfer);
    device_.record(begin, streams_[0].get());
    comm_->move(transfer);
  }

  void queue_collective(kernels::Event begin, kernels::Event end) {
    if (op_.attrs.contains("residents")) return queue_placed(begin, end);
    std::vector<CollectiveLayout<float>> layouts;
    layouts.reserve(streams_.size());
    std::vector<DeviceMember> members;
    for (size_t r = 0; r < streams_.size(); ++r) {
      const auto rank = static_cast<int64_t>(r);
      const CollectiveMemory memory = {
          [this, r](TensorId t) { return operands_.at(r, t); },
          [this, r](TensorId t) { return static_cast<const int32_t*>(operands_.at(r, t)); },
          element_bytes(device_)};
      CollectiveLayout<float>& layout = layouts.emplace_back(graph_, id_, memory, rank);
      layout.read_counts();
      DeviceMember& member = members.emplace_back(
          DeviceMember{.rank = rank, .stream = streams_[r].get(), .group = layout.group()});
      if (layout.sums()) {
        member.summed = &layout;
        member.range = layout.elements(0, 1);
      } else {
        member.send = layout.send();
        member.receive = layout.receive();
        member.pieces = &layout.pieces(0, 1);
      }
    }
    move(members, begin);
    for (size_t r = 0; r < streams_.size(); ++r) {
      for (const UnusedRows& rows : layouts[r].unused_rows()) {
        device_.fill(rows.data, 0, rows.bytes, streams_[r].get());
      }
      finish(r, end);
    }
  }

  /// Queues, after a call of rank r, the check of its outputs for non-finite numbers, the end of
  /// the sample, and then the restoring of overwritten inputs.
  void finish(size_t r, kernels::Event end) {
    const kernels::Stream stream = streams_[r].get();
    auto* const first = reinterpret_cast<int64_t*>(nonfinite_[r].data());
    for (size_t i = 0; i < checks_.size(); ++i) {
      queue_check(graph_.tensor(checks_[i]), operands_.at(r, checks_[i]), first + i, device_,
                  stream);
    }
    if (r == 0) device_.record(end, stream);
    operands_.put_back(r, stream);
  }

  const Graph& graph_;
  const OpId id_;
  const Op& op_;
  const std::string what_;  // "op NAME", for errors
  const DeviceTable& device_;
  const bool collective_;
  const WorkContext work_;
  const std::vector<TensorId> checks_;
  BackgroundTransfers* const background_;
  TrialOperands operands_;
  std::vector<DeviceStorage> scratch_, nonfinite_;  // indexed by rank
  DeviceStorage step_;                              // step number 0, for ops that read it
  std::vector<DeviceStream> streams_;
  std::vector<DeviceEvent> over_;
  DeviceEvent go_;
  std::vector<DeviceEvent> begins_, ends_;  // on rank 0, indexed by call of a batch
  std::unique_ptr<DeviceCommunicator> comm_;
  int64_t num_calls_ = 1, most_calls_ = kMostCalls;
  Nanoseconds ahead_ = kFirstAhead;
  // For background transfers: the number of batches in a row for which they were too short, and the
  // factor by which they are made longer because of that.
  int64_t too_short_ = 0, longer_ = 1;
  Nanoseconds call_ns_ = 0;  // time from call to call; 0 if not known yet
};

/// Calls batch() until there are enough samples, and returns them (of very many only some). batch()
/// may return no samples; if it returns nullopt, there will never be any, and the result is empty.
template <class Batch>
std::vector<Nanoseconds> sample(const ProfileOptions& options, Batch batch) {
  const Nanoseconds created = clock_ns();
  for (int64_t b = 0; b < kWarmUpBatches || clock_ns() - created < kWarmUp; ++b) {
    if (!batch()) return {};
  }
  const Nanoseconds until = clock_ns() + std::llround(options.min_time_s * 1e9);
  std::vector<Nanoseconds> samples;
  while (static_cast<int64_t>(samples.size()) < options.min_samples || clock_ns() < until) {
    check_stop();
    const std::optional<std::vector<Nanoseconds>> more = batch();
    if (!more) return {};
    samples.insert(samples.end(), more->begin(), more->end());
  }
  const size_t most = std::max(kMostSamples, 2 * static_cast<size_t>(options.min_samples));
  const size_t every = (samples.size() + most - 1) / most;
  std::vector<Nanoseconds> kept;
  for (size_t i = 0; i < samples.size(); i += every) kept.push_back(samples[i]);
  return kept;
}

}  // namespace

Samples profile_op_on_device(const Graph& graph, OpId id, const ProfileOptions& options,
                             const DeviceTable& device, BackgroundTransfers* background) {
  const Op& op = graph.op(id);
  const OpDef& def = graph.def(id);
  MOE_CHECK(
      options.ranks_beside > 0 && options.min_samples > 0,
      "op '{}' is to be profiled on {} ranks with at least {} samples; both must be at least 1",
      op.name, options.ranks_beside, options.min_samples);
  MOE_CHECK(!is_view(graph, op),
            "op '{}' of kind {} is a view, which takes no time; it must not be profiled", op.name,
            def.name);
  if (def.collective == Collective::kExperts) {
    return {std::vector<Nanoseconds>(static_cast<size_t>(options.min_samples))};
  }
  if (def.collective != Collective::kNone) {
    MOE_CHECK(options.ranks_beside == graph.num_ranks,
              "op '{}' is a collective: it is to be profiled on {} ranks, but must be on all {} "
              "ranks of the graph",
              op.name, options.ranks_beside, graph.num_ranks);
  } else if (!has_kernel(graph, id, device)) {
    throw user_error("op '{}': the op kind {} has no kernel on this device, so it cannot be timed",
                     op.name, def.name);
  }
  if (works_on_host(graph, id)) {
    MOE_CHECK(background == nullptr,
              "op '{}' runs on the CPU, so it must be profiled without background transfers",
              op.name);
    HostTrial trial(graph, id, options, device);
    return {sample(options, [&] { return std::optional(std::vector{trial.call()}); })};
  }
  DeviceCalls calls(graph, id, options, device, background);
  return {sample(options, [&] { return calls.batch(); })};
}

std::string device_profile_key(const ProfileOptions& options, const DeviceTable& device) {
  const kernels::DeviceInfo info = device.info();
  return fmt::format("{}; {}; host {}", info.name, info.versions, profile_key(options));
}

}  // namespace moe
