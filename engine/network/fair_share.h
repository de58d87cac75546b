// Weighted max-min shares of links by progressive filling (Bertsekas and Gallager, Data Networks,
// section 6.5.2): the rates of all flows grow together, each in proportion to its weight; when a
// link is full, the flows on it stand still. No flow can get more without a flow of a smaller or
// equal rate by weight getting less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moe {

/// `count` alike flows: the same two different links, the same weight each.
struct FlowGroup {
  uint32_t out = 0;
  uint32_t in = 0;
  double count = 0;    // above 0
  double weight = 1;   // of each, above 0
  int64_t level = 0;   // higher ones are served first; lower ones get what they leave
  uint32_t owner = 0;  // the collective that they belong to
  double rate = 0;     // result: of each
};

/// Shares links between groups again and again; keeps its buffers in between.
class FairShare {
 public:
  /// efficiency: the part of a link's rate that is left while flows of two or more owners move on
  /// it; a lower level does not cost a higher one anything.
  explicit FairShare(double efficiency = 1) : efficiency_(efficiency) {}

  /// The groups changed other than in count and weight. Groups of one owner stand together.
  void set_groups(const std::vector<FlowGroup>& groups, size_t num_links);
  /// Sets the rates of the groups of the last set_groups(); capacity: by link, above 0.
  void fill(std::vector<FlowGroup>& groups, const double* capacity);

 private:
  struct Link {
    double used = 0, weight = 0;
    int64_t waiting = 0;  // groups of the level without a rate so far
    int64_t owners = 0;
    uint32_t last_owner = 0;
  };
  void start_level(const std::vector<FlowGroup>& groups, int64_t level);
  void fill_level(std::vector<FlowGroup>& groups, int64_t level, const double* capacity);
  void freeze(FlowGroup& group, double per_weight);

  double efficiency_;
  std::vector<Link> links_;
  std::vector<double> per_weight_;  // of a link: what is left by weight of who waits
  std::vector<uint32_t> open_;      // links on which groups wait
  std::vector<int64_t> levels_;     // descending
  std::vector<uint32_t> first_;     // of a link in on_link_
  std::vector<uint32_t> on_link_;   // groups
  std::vector<char> frozen_;
};

}  // namespace moe
