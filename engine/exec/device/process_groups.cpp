// The collectives of one rank per process: one process group (NCCL communicator) per lane and group
// of ranks, so that lanes do not wait for each other.
#include <array>
#include <map>

#include "engine/base/errors.h"
#include "engine/exec/device/buffers.h"
#include "engine/exec/device/comm.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

class DeviceProcessGroups : public DeviceCommunicator {
 public:
  DeviceProcessGroups(const kernels::DeviceTable& device, Processes& processes, const Plan& plan,
                      double timeout_s, const kernels::ProcessGroupSettings& settings)
      : device_(device), table_(*device.process_groups), num_ranks_(processes.size()) {
    for (size_t lane = 1; lane < plan.orders.lanes.size(); ++lane) {
      if (plan.schedule.lanes[lane].kind != LaneKind::kComm) continue;
      const kernels::ProcessGroup all = join(processes, timeout_s, settings);
      groups_[{static_cast<int64_t>(lane), num_ranks_, 1}] = all;
      for (const OpId op : plan.orders.lanes[lane]) {
        add_group(static_cast<int64_t>(lane), group_of(plan.graph, plan.graph.op(op)), all,
                  processes.rank(), timeout_s);
      }
    }
  }
  ~DeviceProcessGroups() override {
    for (const auto& [key, process_group] : groups_) table_.destroy(process_group);
  }

  void meet(const DeviceTransfer&) override {}

  void move(const DeviceTransfer& t) override {
    const DeviceMember& m = t.members[0];
    const Group& group = m.group;
    const kernels::ProcessGroup process_group =
        groups_.at({static_cast<int64_t>(t.lane.index()), group.size, group.stride});
    if (t.sums()) {
      sum(m, process_group);
    } else {
      exchange(m, process_group);
    }
    check_device(device_, t.what);
  }

  void check() override {
    for (const auto& [key, process_group] : groups_) {
      const std::string trouble = table_.trouble(process_group);
      if (!trouble.empty())
        throw run_error("a collective between the processes of the job failed: {}", trouble);
    }
  }

  void abort() noexcept override {
    for (const auto& [key, process_group] : groups_) table_.abort(process_group);
    groups_.clear();
  }

 private:
  using Key = std::array<int64_t, 3>;  // lane, size and stride of the group

  kernels::ProcessGroup join(Processes& processes, double timeout_s,
                             const kernels::ProcessGroupSettings& settings) {
    std::string id(kernels::ProcessGroupTable::kIdBytes, '\0');
    if (processes.is_root() && !table_.make_id(id.data()))
      fail("creating the id of a process group failed");
    id = processes.broadcast("process group", id);
    const kernels::ProcessGroup process_group =
        table_.join(id.data(), processes.rank(), num_ranks_, timeout_s, settings);
    if (process_group == nullptr) fail("joining the process group of all ranks failed");
    return process_group;
  }

  void add_group(int64_t lane, const Group& group, kernels::ProcessGroup all, int64_t rank,
                 double timeout_s) {
    const Key key = {lane, group.size, group.stride};
    if (groups_.contains(key)) return;
    const int64_t first = group.member(rank, 0);
    const kernels::ProcessGroup process_group = table_.split(all, first, timeout_s);
    if (process_group == nullptr) fail("splitting the ranks into groups failed");
    groups_[key] = process_group;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw run_error("{}: {}", what, device_.take_error());
  }

  void exchange(const DeviceMember& m, kernels::ProcessGroup process_group) {
    const Pieces& pieces = *m.pieces;
    const Group& group = m.group;
    const int64_t own = group.place(m.rank);
    std::vector<kernels::Message> sends, receives;
    for (int64_t p = 0; p < group.size; ++p) {
      for (int64_t g = 0; g < pieces.groups; ++g) {
        const auto i = static_cast<size_t>(p * pieces.groups + g);
        // The library's interface takes a non-const pointer but only reads from it.
        auto* const from = const_cast<std::byte*>(m.send) + pieces.send_offset[i];
        std::byte* const to = m.receive + pieces.receive_offset[i];
        if (p == own) {
          if (pieces.send_bytes[i] > 0) device_.copy(to, from, pieces.send_bytes[i], m.stream);
          continue;
        }
        const auto peer = static_cast<int32_t>(p);
        if (pieces.send_bytes[i] > 0) sends.push_back({peer, from, pieces.send_bytes[i]});
        if (pieces.receive_bytes[i] > 0) receives.push_back({peer, to, pieces.receive_bytes[i]});
      }
    }
    table_.exchange(process_group, sends.data(), static_cast<int64_t>(sends.size()),
                    receives.data(), static_cast<int64_t>(receives.size()), m.stream);
  }

  void sum(const DeviceMember& m, kernels::ProcessGroup process_group) {
    const ElementRange range = m.range;
    const int64_t n = range.last - range.first;
    const auto& parts = m.summed->parts();
    if (parts.size() == 1) {
      table_.all_reduce(process_group, parts[0].in + range.first, parts[0].out + range.first, n,
                        m.stream);
      return;
    }
    auto* const packed = static_cast<float*>(m.scratch);
    const auto bytes = [](int64_t elements) { return elements * Bytes{sizeof(float)}; };
    m.summed->each_part(range, [&](const auto& p, int64_t at, int64_t size, int64_t to) {
      device_.copy(packed + to, p.in + at, bytes(size), m.stream);
    });
    table_.all_reduce(process_group, packed, packed, n, m.stream);
    m.summed->each_part(range, [&](const auto& p, int64_t at, int64_t size, int64_t from) {
      device_.copy(p.out + at, packed + from, bytes(size), m.stream);
    });
  }

  const kernels::DeviceTable& device_;
  const kernels::ProcessGroupTable& table_;
  const int64_t num_ranks_;
  std::map<Key, kernels::ProcessGroup> groups_;
};

}  // namespace

std::unique_ptr<DeviceCommunicator> device_process_groups(
    const kernels::DeviceTable& device, Processes& processes, const Plan& plan, double timeout_s,
    const kernels::ProcessGroupSettings& settings) {
  if (device.process_groups == nullptr) {
    throw user_error(
        "ranks in several processes need NCCL, but the CUDA plugin was built without it");
  }
  return std::make_unique<DeviceProcessGroups>(device, processes, plan, timeout_s, settings);
}

}  // namespace moe
