// The collectives of one rank per process: a clique a lane and group, so that lanes do not wait for
// each other.
#include <array>
#include <map>

#include "engine/base/errors.h"
#include "engine/exec/device/buffers.h"
#include "engine/exec/device/comm.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

class DeviceClique : public DeviceCommunicator {
 public:
  DeviceClique(const kernels::DeviceTable& device, Processes& processes, const Plan& plan,
               double timeout_s, const kernels::CliqueSettings& settings)
      : device_(device), cliques_(*device.cliques), num_ranks_(processes.size()) {
    for (size_t lane = 1; lane < plan.orders.lanes.size(); ++lane) {
      if (plan.schedule.lanes[lane].kind != LaneKind::kComm) continue;
      const kernels::Clique all = join(processes, timeout_s, settings);
      groups_[{static_cast<int64_t>(lane), num_ranks_, 1}] = all;
      for (const OpId op : plan.orders.lanes[lane]) {
        add_group(static_cast<int64_t>(lane), group_of(plan.graph, plan.graph.op(op)), all,
                  processes.rank(), timeout_s);
      }
    }
  }
  ~DeviceClique() override {
    for (const auto& [key, clique] : groups_) cliques_.destroy(clique);
  }

  void meet(const DeviceTransfer&) override {}

  void move(const DeviceTransfer& t) override {
    const DeviceMember& m = t.members[0];
    const Group& group = m.group;
    const kernels::Clique clique =
        groups_.at({static_cast<int64_t>(t.lane.index()), group.size, group.stride});
    if (t.sums()) {
      sum(m, clique);
    } else {
      exchange(m, clique);
    }
    check_device(device_, t.what);
  }

  void check() override {
    for (const auto& [key, clique] : groups_) {
      const std::string trouble = cliques_.trouble(clique);
      if (!trouble.empty()) throw run_error("a collective between processes: {}", trouble);
    }
  }

  void abort() noexcept override {
    for (const auto& [key, clique] : groups_) cliques_.abort(clique);
    groups_.clear();
  }

 private:
  using Key = std::array<int64_t, 3>;  // lane, size and stride of the group

  kernels::Clique join(Processes& processes, double timeout_s,
                       const kernels::CliqueSettings& settings) {
    std::string id(kernels::CliqueTable::kIdBytes, '\0');
    if (processes.is_root() && !cliques_.make_id(id.data())) fail("the identity of a clique");
    id = processes.broadcast("clique", id);
    const kernels::Clique clique =
        cliques_.join(id.data(), processes.rank(), num_ranks_, timeout_s, settings);
    if (clique == nullptr) fail("joining the other ranks");
    return clique;
  }

  void add_group(int64_t lane, const Group& group, kernels::Clique all, int64_t rank,
                 double timeout_s) {
    const Key key = {lane, group.size, group.stride};
    if (groups_.contains(key)) return;
    const int64_t first = group.member(rank, 0);
    const kernels::Clique clique = cliques_.split(all, first, timeout_s);
    if (clique == nullptr) fail("splitting the ranks into groups");
    groups_[key] = clique;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw run_error("{}: {}", what, device_.take_error());
  }

  void exchange(const DeviceMember& m, kernels::Clique clique) {
    const Pieces& pieces = *m.pieces;
    const Group& group = m.group;
    const int64_t own = group.place(m.rank);
    std::vector<kernels::Message> sends, receives;
    for (int64_t p = 0; p < group.size; ++p) {
      for (int64_t g = 0; g < pieces.groups; ++g) {
        const auto i = static_cast<size_t>(p * pieces.groups + g);
        // The library only reads what is sent.
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
    cliques_.exchange(clique, sends.data(), static_cast<int64_t>(sends.size()), receives.data(),
                      static_cast<int64_t>(receives.size()), m.stream);
  }

  void sum(const DeviceMember& m, kernels::Clique clique) {
    const ElementRange range = m.range;
    const int64_t n = range.last - range.first;
    const auto& parts = m.summed->parts();
    if (parts.size() == 1) {
      cliques_.all_reduce(clique, parts[0].in + range.first, parts[0].out + range.first, n,
                          m.stream);
      return;
    }
    auto* const packed = static_cast<float*>(m.scratch);
    const auto bytes = [](int64_t elements) { return elements * Bytes{sizeof(float)}; };
    m.summed->each_part(range, [&](const auto& p, int64_t at, int64_t size, int64_t to) {
      device_.copy(packed + to, p.in + at, bytes(size), m.stream);
    });
    cliques_.all_reduce(clique, packed, packed, n, m.stream);
    m.summed->each_part(range, [&](const auto& p, int64_t at, int64_t size, int64_t from) {
      device_.copy(p.out + at, packed + from, bytes(size), m.stream);
    });
  }

  const kernels::DeviceTable& device_;
  const kernels::CliqueTable& cliques_;
  const int64_t num_ranks_;
  std::map<Key, kernels::Clique> groups_;
};

}  // namespace

std::unique_ptr<DeviceCommunicator> device_clique(const kernels::DeviceTable& device,
                                                  Processes& processes, const Plan& plan,
                                                  double timeout_s,
                                                  const kernels::CliqueSettings& settings) {
  if (device.cliques == nullptr) {
    throw user_error("ranks in several processes need NCCL, which the plugin was built without");
  }
  return std::make_unique<DeviceClique>(device, processes, plan, timeout_s, settings);
}

}  // namespace moe
