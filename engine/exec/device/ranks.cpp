// The collectives of ranks that are all in this process and share one device.
#include <optional>

#include "engine/base/errors.h"
#include "engine/exec/device/buffers.h"
#include "engine/exec/device/comm.h"
#include "engine/exec/device/emulated_link_thread.h"
#include "engine/exec/device/handles.h"
#include "engine/network/closed_form.h"

namespace moe {
namespace {

class DeviceRanks : public DeviceCommunicator {
 public:
  DeviceRanks(const kernels::DeviceTable& device, int64_t num_ranks, int64_t num_lanes,
              const DeviceLink& link)
      : device_(device), num_ranks_(num_ranks), link_(link) {
    for (int64_t i = 0; i < num_ranks * num_lanes; ++i) {
      met_.emplace_back(device, false);
      paced_.emplace_back(device, false);
      pace_.emplace_back(device, true);
    }
    check_device(device, "streams of the link");
    if (link.shared) {
      link_thread_.emplace(device, *link.cluster, static_cast<size_t>(num_ranks * num_lanes));
    }
  }

  void meet(const DeviceTransfer& t) override {
    for (const DeviceMember& m : t.members) device_.record(met(t, m.rank), m.stream);
    for (const DeviceMember& m : t.members) {
      const Group& group = m.group;
      for (int64_t p = 0; p < group.size; ++p) {
        const int64_t other = group.member(m.rank, p);
        if (other != m.rank) device_.wait(m.stream, met(t, other));
      }
    }
  }

  void move(const DeviceTransfer& t) override {
    if (t.sums()) {
      sum(t);
    } else {
      exchange(t);
    }
    meet(t);
  }

  void expect_step() override {
    if (link_thread_) link_thread_->expect_step();
  }
  void begin_step(kernels::Stream stream) override {
    if (link_thread_) link_thread_->begin_step(stream);
  }
  std::vector<LinkSpan> take_links() override {
    return link_thread_ ? link_thread_->take_links() : std::vector<LinkSpan>();
  }
  void check() override {
    if (link_thread_) link_thread_->check();
  }
  void abort() noexcept override {
    if (link_thread_) link_thread_->abort();
  }

 private:
  using Matrix = std::vector<double>;  // [N, N] bytes from source to destination

  kernels::Event met(const DeviceTransfer& t, int64_t rank) const {
    return met_[number(t, rank)].get();
  }
  size_t number(const DeviceTransfer& t, int64_t rank) const {
    return t.lane.index() * static_cast<size_t>(num_ranks_) + static_cast<size_t>(rank);
  }

  void exchange(const DeviceTransfer& t) {
    std::vector<std::vector<kernels::Copy>> copies;
    Matrix bytes(link_.cluster == nullptr ? 0 : static_cast<size_t>(num_ranks_ * num_ranks_));
    for (const DeviceMember& m : t.members) copies.push_back(copies_to(m, t, bytes));
    if (link_.cluster == nullptr) {
      for (size_t r = 0; r < copies.size(); ++r) {
        for (const kernels::Copy& c : copies[r]) {
          device_.copy(c.to, c.from, c.bytes, t.members[r].stream);
        }
      }
      return;
    }
    const PacedTransfers paced = paced_exchange(t, bytes);
    for (size_t r = 0; r < copies.size(); ++r) {
      device_.paced_copies(copies[r].data(), static_cast<int64_t>(copies[r].size()), paced[r].alone,
                           link_.blocks, paced[r].signal, t.members[r].stream);
    }
  }

  /// For each member, the duration and signal of its kernels.
  using PacedTransfers = std::vector<PacedTransfer>;

  PacedTransfers paced_exchange(const DeviceTransfer& t, const Matrix& bytes) {
    const Group& group = t.members[0].group;
    const Round& round = t.members[0].pieces->round;
    if (!link_thread_) {
      return PacedTransfers(t.members.size(),
                            {{}, all_to_all_v_ns(*link_.cluster, bytes, group, round)});
    }
    return post_all(t, [&](const DeviceMember& first) {
      const int64_t rank = first.rank;
      return NetworkOp{AllToAll{.bytes = bytes_of_group(bytes, group, rank, num_ranks_),
                                .round = round,
                                .rank = rank},
                       group};
    });
  }

  PacedTransfers paced_sum(const DeviceTransfer& t, ElementRange range) {
    const Group& group = t.members[0].group;
    AllReduce op = {.bytes = static_cast<double>((range.last - range.first) * Bytes{sizeof(float)}),
                    .algorithm = link_.cluster->all_reduce};
    if (!link_thread_) {
      return PacedTransfers(t.members.size(), {{}, all_reduce_ns(*link_.cluster, op, group)});
    }
    return post_all(t, [&](const DeviceMember& first) {
      op.rank = group.size == num_ranks_ ? -1 : first.rank;
      return NetworkOp{op, group};
    });
  }

  /// Posts one transfer per group; `of` returns it for the group's first member. All members'
  /// kernels share one signal, and the first kernel that runs signals the begin: if only one
  /// member's kernel could signal it, kernels of the other members might occupy all multiprocessors
  /// and wait for it forever.
  template <class Of>
  PacedTransfers post_all(const DeviceTransfer& t, Of of) {
    PacedTransfers paced(t.members.size());
    for (size_t r = 0; r < paced.size(); ++r) {
      const DeviceMember& m = t.members[r];
      const auto first = static_cast<size_t>(m.group.member(m.rank, 0));
      if (first == r) {
        paced[r] = link_thread_->post(number(t, m.rank), of(m));
      } else {
        paced[r] = paced[first];
      }
    }
    return paced;
  }

  /// Returns the memory copies with which rank m.rank takes its pieces from all members. Adds their
  /// bytes to `bytes`, unless `bytes` is empty.
  std::vector<kernels::Copy> copies_to(const DeviceMember& m, const DeviceTransfer& t,
                                       Matrix& bytes) const {
    const Group& group = m.group;
    const Pieces& mine = *m.pieces;
    std::vector<kernels::Copy> copies;
    for (int64_t p = 0; p < group.size; ++p) {
      const int64_t peer = group.member(m.rank, p);
      const DeviceMember& other = t.members[static_cast<size_t>(peer)];
      const Pieces& theirs = *other.pieces;
      for (int64_t g = 0; g < mine.groups; ++g) {
        const auto to = static_cast<size_t>(p * mine.groups + g);
        const auto from = static_cast<size_t>(group.place(m.rank) * mine.groups + g);
        const Bytes n = mine.receive_bytes[to];
        if (theirs.send_bytes[from] != n) {
          throw run_error("{}: rank {} sends {} bytes to rank {}, which expects {} bytes", t.what,
                          peer, theirs.send_bytes[from], m.rank, n);
        }
        if (n == 0) continue;
        if (!bytes.empty() && peer != m.rank) {
          bytes[static_cast<size_t>(peer * num_ranks_ + m.rank)] += static_cast<double>(n);
        }
        copies.push_back(
            {m.receive + mine.receive_offset[to], other.send + theirs.send_offset[from], n});
      }
    }
    return copies;
  }

  /// Each member sums one slice of the message, and the others copy this slice from its memory.
  /// This works in place: a slice is only written when all members have read it.
  void sum(const DeviceTransfer& t) {
    const ElementRange range = t.members[0].range;
    start_pace(t, range);
    for (const DeviceMember& m : t.members) sum_slice(m, t, range);
    meet(t);
    for (const DeviceMember& m : t.members) take_slices(m, t, range);
    end_pace(t);
  }

  static ElementRange slice_of(ElementRange range, int64_t place, int64_t size) {
    const int64_t n = range.last - range.first;
    return {range.first + n * place / size, range.first + n * (place + 1) / size};
  }

  void sum_slice(const DeviceMember& m, const DeviceTransfer& t, ElementRange range) {
    const Group& group = m.group;
    std::vector<const float*> in(static_cast<size_t>(group.size));
    size_t part = 0;
    const auto& parts = m.summed->parts();
    m.summed->each_part(slice_of(range, group.place(m.rank), group.size),
                        [&](const auto& p, int64_t at, int64_t n, int64_t) {
                          while (&parts[part] != &p) ++part;
                          for (int64_t i = 0; i < group.size; ++i) {
                            in[static_cast<size_t>(i)] =
                                layout_of(t, group.member(m.rank, i)).parts()[part].in + at;
                          }
                          device_.kernels->sum_n(p.out + at, in.data(), group.size, n, m.stream);
                        });
  }

  void take_slices(const DeviceMember& m, const DeviceTransfer& t, ElementRange range) {
    const Group& group = m.group;
    const auto& parts = m.summed->parts();
    for (int64_t i = 0; i < group.size; ++i) {
      const int64_t peer = group.member(m.rank, i);
      if (peer == m.rank) continue;
      size_t part = 0;
      layout_of(t, peer).each_part(
          slice_of(range, i, group.size), [&](const auto& p, int64_t at, int64_t n, int64_t) {
            while (&layout_of(t, peer).parts()[part] != &p) ++part;
            device_.copy(parts[part].out + at, p.out + at, n * Bytes{sizeof(float)}, m.stream);
          });
    }
  }

  const CollectiveLayout<float>& layout_of(const DeviceTransfer& t, int64_t rank) const {
    return *t.members[static_cast<size_t>(rank)].summed;
  }

  /// A separate stream per member waits for the emulated link's time, counted from meet() on.
  void start_pace(const DeviceTransfer& t, ElementRange range) {
    if (link_.cluster == nullptr) return;
    const PacedTransfers paced = paced_sum(t, range);
    for (size_t r = 0; r < paced.size(); ++r) {
      const size_t i = number(t, t.members[r].rank);
      device_.record(paced_[i].get(), t.members[r].stream);
      device_.wait(pace_[i].get(), paced_[i].get());
      device_.sleep(paced[r].alone, paced[r].signal, pace_[i].get());
      device_.record(paced_[i].get(), pace_[i].get());
    }
  }
  void end_pace(const DeviceTransfer& t) {
    if (link_.cluster == nullptr) return;
    for (const DeviceMember& m : t.members) {
      device_.wait(m.stream, paced_[number(t, m.rank)].get());
    }
  }

  const kernels::DeviceTable& device_;
  const int64_t num_ranks_;
  const DeviceLink link_;
  // Indexed by lane and rank.
  std::vector<DeviceEvent> met_, paced_;
  std::vector<DeviceStream> pace_;
  std::optional<EmulatedLinkThread> link_thread_;  // only when lanes share the link
};

}  // namespace

std::unique_ptr<DeviceCommunicator> device_ranks(const kernels::DeviceTable& device,
                                                 int64_t num_ranks, int64_t num_lanes,
                                                 const DeviceLink& link) {
  return std::make_unique<DeviceRanks>(device, num_ranks, num_lanes, link);
}

}  // namespace moe
