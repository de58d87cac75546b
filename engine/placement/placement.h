// Placement: the devices that hold each expert, and how the rows of a source are shared among the
// holders. A value that planners return and ops read. Each device has `residents` slots for experts
// that live there (parameters and optimizer state) and `shadows` slots for copies of one step
// (parameters are copied in, gradients return, no state). Slots are numbered with residents first.
// Invariants (see check()): every expert has one owner, which is one of its residents; a device
// holds an expert at most once; a slot holds an expert or nothing (-1). Policies are in policy.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/expert_counts.h"

namespace moe {

/// How the rows that one source rank sends to an expert are shared among its holders. kLocal:
/// all to the source's own device if it holds the expert, else to the owner (FasterMoE,
/// Pro-Prophet). kEven: equally many to each holder (Lina's replicas, EPLB), where the first holder
/// differs between sources. kWeighted: in proportion to Placement::weight.
enum class Sharing : int32_t { kLocal = 0, kEven = 1, kWeighted = 2 };

/// The sizes of all placements of a plan; they never change in a run.
struct PlacementBounds {
  int64_t experts = 1;
  int64_t devices = 1;
  int64_t residents = 1;  // slots per device; residents * devices >= experts
  int64_t shadows = 0;    // slots per device
  bool weighted = false;  // whether kWeighted is allowed
  /// Whether all rows that a source has for an expert go to one holder, because the batch is cut
  /// into parts: with kEven to holder number source % holders, with kWeighted to the one of most
  /// weight.
  bool by_source = false;
  int64_t slots() const { return residents + shadows; }
  bool operator==(const PlacementBounds&) const = default;
};
/// Throws UserError naming "placement.<field>", the value and what is allowed.
void check(const PlacementBounds& bounds);

class Placement {
 public:
  static constexpr int64_t kMaxWeight = int64_t{1} << 20;  // of set_weight

  /// Plain expert parallelism: the experts in order, equally many on each device (one more on the
  /// first devices if they do not divide), sharing kLocal. Throws like check(bounds).
  explicit Placement(const PlacementBounds& bounds);

  const PlacementBounds& bounds() const { return bounds_; }
  int64_t owner(int64_t expert) const { return codes_[index(expert)]; }
  Sharing sharing(int64_t expert) const;
  /// Returns the expert in a slot; -1 when the slot is empty.
  int64_t at(int64_t device, int64_t slot) const { return codes_[slot_index(device, slot)]; }
  /// Returns the slot in which the device holds the expert; -1 when it does not hold it.
  int64_t slot_of(int64_t expert, int64_t device) const;
  bool holds(int64_t device, int64_t expert) const { return slot_of(expert, device) >= 0; }
  bool is_resident(int64_t expert, int64_t device) const;
  /// Returns the devices that hold the expert, ascending.
  std::vector<int64_t> holders(int64_t expert) const;
  /// Returns the first source whose tokens for the expert no holder takes, since all of their
  /// weights are 0; -1 if there is none.
  int64_t not_taken(int64_t expert) const;
  int64_t free_residents(int64_t device) const;
  int64_t free_shadows(int64_t device) const;
  /// For kWeighted: the relative share of the rows of `source` for the slot's expert that this slot
  /// takes, compared with the weights of the other slots that hold the expert.
  int64_t weight(int64_t source, int64_t device, int64_t slot) const;

  // Edits. Each throws UserError, naming expert, device and what is allowed, for a number out of
  // range, without a free slot, to add an expert that the device holds already, or to remove one
  // that it does not hold; nothing is changed then.
  /// Adds a copy for one step in the first free shadow slot, or in shadow slot number `shadow`
  /// (from 0), which lets a planner decide what is sent first.
  void add_shadow(int64_t expert, int64_t device, int64_t shadow = -1);
  /// Adds a further resident: parameters and state are copied to the device and stay there.
  void add_resident(int64_t expert, int64_t device);
  /// Makes `device` the owner, with parameters and state; the old owner no longer holds the expert.
  void move_owner(int64_t expert, int64_t device);
  /// Exchanges the owners of experts a and b, also where move_owner would find no free slot.
  void swap_owners(int64_t a, int64_t b);
  /// Removes a copy or a resident other than the owner.
  void remove(int64_t expert, int64_t device);
  void clear_shadows();
  /// Replaces the owners and residents of all experts; clears shadows. owners: [experts]. held: the
  /// experts that live on each device, those that it owns among them, at most bounds().residents.
  /// An expert that was already resident on a device keeps its slot there.
  void set_residents(std::span<const int64_t> owners,
                     const std::vector<std::vector<int64_t>>& held);
  void set_sharing(int64_t expert, Sharing sharing);
  void set_weight(int64_t source, int64_t device, int64_t slot, int64_t weight);

  /// Throws UserError naming expert and device when an invariant does not hold.
  void check() const;

  /// The placement as the int32 tensor that ops read and write: [code_size(bounds)].
  std::span<const int32_t> codes() const { return codes_; }
  /// Returns the placement with these codes. Throws UserError for a wrong number of codes, and like
  /// check().
  static Placement decode(const PlacementBounds& bounds, std::span<const int32_t> codes);
  static int64_t code_size(const PlacementBounds& bounds);

  bool operator==(const Placement&) const = default;

 private:
  static size_t index(int64_t i) { return static_cast<size_t>(i); }
  size_t slot_index(int64_t device, int64_t slot) const {
    return static_cast<size_t>(bounds_.experts + device * bounds_.slots() + slot);
  }
  size_t sharing_index(int64_t expert) const;
  size_t weight_index(int64_t source, int64_t device, int64_t slot) const;
  int64_t find_free(int64_t device, int64_t first, int64_t last) const;
  void check_expert(int64_t expert) const;
  void check_device(int64_t device) const;

  PlacementBounds bounds_;
  // owners [experts], slots [devices, slots], sharings [experts], weights [devices, devices, slots]
  std::vector<int32_t> codes_;
};

/// Of the rows that one source sends to an expert, the rows [begin, end), which one slot takes.
struct RowRange {
  int64_t device = 0, slot = 0;
  int64_t begin = 0, end = 0;
};
/// Divides `rows` rows of a source for an expert among its holders, in the order of their devices
/// (for kEven starting at holder number source % holders). Row r of n goes to the holder whose part
/// of [0, 1) contains r/n. Ranges are ascending and cover all rows; empty ranges are omitted.
std::vector<RowRange> share_rows(const Placement& placement, int64_t expert, int64_t source,
                                 int64_t rows);

/// Returns the rows that each slot computes for each source: [devices, slots, sources]. Requires:
/// loads with the placement's numbers of devices (as sources) and experts.
std::vector<int64_t> rows_by_slot(const Placement& placement, const ExpertCounts& loads);

/// For each device the inputs that it computes (H) and those that it receives from other devices
/// (R), in the notation of Pro-Prophet, table II.
struct DeviceLoads {
  std::vector<int64_t> computed, received;
};
DeviceLoads device_loads(const Placement& placement, const ExpertCounts& loads);
/// The same of all ranks, where the placement holds in each group of them. loads: of all ranks.
DeviceLoads device_loads(const Placement& placement, const ExpertCounts& loads, const Group& group);

/// A transfer of an expert from one device to another.
struct Move {
  int64_t expert = 0, from = 0, to = 0, slot = 0;  // slot of `to`
  bool operator==(const Move&) const = default;
};
/// Returns the moves that create the residents of `next` which `now` lacks, each from the expert's
/// owner in `now`, with parameters and optimizer state. from == to when an expert only changes its
/// slot on a device.
std::vector<Move> resident_moves(const Placement& now, const Placement& next);
/// Returns the transfers from owners that fill the shadows of a placement, in the order of shadow
/// slots, then devices. Parameters go this way, gradients go back.
std::vector<Move> shadow_moves(const Placement& placement);

}  // namespace moe
