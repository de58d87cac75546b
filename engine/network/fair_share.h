// Weighted max-min shares of links by progressive filling (Bertsekas and Gallager, Data Networks,
// section 6.5.2): the rates of all flows grow together, each in proportion to its weight; when a
// link is full, the rates of the flows on it stop growing. Invariant: no flow can get more without
// taking from a flow whose rate / weight is smaller or equal. Time is not here but in link_clock.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moe {

/// `count` equal flows: each crosses the same two different links with the same weight.
struct FlowGroup {
  uint32_t out = 0;
  uint32_t in = 0;
  double count = 0;    // above 0
  double weight = 1;   // of each flow, above 0
  int64_t level = 0;   // higher levels are served first; lower ones get what they leave
  uint32_t owner = 0;  // the collective that the flows belong to
  double rate = 0;     // result: bytes per second of each flow
};

/// Computes the shares of groups of flows; keeps its buffers between calls.
class FairShare {
 public:
  /// `efficiency`: the fraction of a link's rate that remains while flows of two or more owners use
  /// it. Flows of a lower level do not reduce the rate for a higher level.
  explicit FairShare(double efficiency = 1) : efficiency_(efficiency) {}

  /// Must be called after every change of the groups except of `count` and `weight`. Groups of the
  /// same owner must be adjacent in `groups`.
  void set_groups(const std::vector<FlowGroup>& groups, size_t num_links);
  /// Computes `rate` of each group. `groups` are those of the last set_groups(). `capacity`: bytes
  /// per second indexed by link, above 0.
  void fill(std::vector<FlowGroup>& groups, const double* capacity);

 private:
  struct Link {
    double used = 0, weight = 0;
    int64_t waiting = 0;  // groups of the level that have no rate yet
    int64_t owners = 0;
    uint32_t last_owner = 0;
  };
  void start_level(const std::vector<FlowGroup>& groups, int64_t level);
  void fill_level(std::vector<FlowGroup>& groups, int64_t level, const double* capacity);
  void freeze(FlowGroup& group, double per_weight);

  double efficiency_;
  std::vector<Link> links_;
  std::vector<double> per_weight_;  // by link: rate left / weight of groups without a rate
  std::vector<uint32_t> open_;      // links with groups that have no rate yet
  std::vector<int64_t> levels_;     // in descending order
  std::vector<uint32_t> first_;     // indexed by link: where its groups begin in on_link_
  std::vector<uint32_t> on_link_;   // indices of groups, ordered by link
  std::vector<char> frozen_;
};

}  // namespace moe
