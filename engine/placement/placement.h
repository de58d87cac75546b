// Placement: which devices hold each expert, and how the tokens of a source are shared among its
// holders. A value; what planners return and ops read. Every device has `residents` slots for
// experts that live there (parameters and optimiser state) and `shadows` slots for copies of one
// step (parameters in, gradients back, no state); slots are numbered through, residents first.
// Invariants, held by check(): every expert has one owner, which is a resident of it; a device
// holds an expert once; what is in a slot is an expert or nothing (-1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/expert_counts.h"

namespace moe {

/// How the tokens that one source sends to an expert are shared among the expert's holders.
/// kLocal: all to the source's own device where it holds the expert, else to the owner (FasterMoE,
/// Pro-Prophet). kEven: as many to each (Lina's replicas, EPLB), the first holder another one for
/// every source. kWeighted: by Placement::weight.
enum class Sharing : int32_t { kLocal = 0, kEven = 1, kWeighted = 2 };

/// What a plan has room for; never changed in a run.
struct PlacementBounds {
  int64_t experts = 1;
  int64_t devices = 1;
  int64_t residents = 1;  // slots per device; residents * devices >= experts
  int64_t shadows = 0;    // slots per device
  bool weighted = false;  // whether Sharing::kWeighted may be used
  int64_t slots() const { return residents + shadows; }
  bool operator==(const PlacementBounds&) const = default;
};
/// Throws UserError naming "placement.<field>", the value and what is allowed.
void check(const PlacementBounds& bounds);

class Placement {
 public:
  /// Expert parallelism: the experts in order, as many on each device (the first ones hold one more
  /// where they do not divide), sharing kLocal. Throws as check(bounds).
  explicit Placement(const PlacementBounds& bounds);

  const PlacementBounds& bounds() const { return bounds_; }
  int64_t owner(int64_t expert) const { return codes_[index(expert)]; }
  Sharing sharing(int64_t expert) const;
  /// The expert in a slot, -1: none.
  int64_t at(int64_t device, int64_t slot) const;
  /// The slot of the device that holds the expert, -1: none.
  int64_t slot_of(int64_t expert, int64_t device) const;
  bool holds(int64_t device, int64_t expert) const { return slot_of(expert, device) >= 0; }
  bool is_resident(int64_t expert, int64_t device) const;
  /// Devices that hold the expert, ascending.
  std::vector<int64_t> holders(int64_t expert) const;
  int64_t free_residents(int64_t device) const;
  int64_t free_shadows(int64_t device) const;
  /// Of kWeighted: the share of source's tokens for the expert of a slot that go there, against the
  /// other slots that hold it.
  int64_t weight(int64_t source, int64_t device, int64_t slot) const;

  // Edits. Each throws UserError naming expert, device and what is allowed, and changes nothing
  // then: numbers out of range, no free slot, a copy that is there already or is not there.
  /// A copy for one step, in the first free shadow slot or in shadow slot number `shadow` (from 0),
  /// so that a planner may say what is sent first.
  void add_shadow(int64_t expert, int64_t device, int64_t shadow = -1);
  /// A second resident: parameters and state are copied there and stay.
  void add_resident(int64_t expert, int64_t device);
  /// The owner's copy moves to the device, with its state; a resident there becomes the owner.
  void move_owner(int64_t expert, int64_t device);
  /// Two owners change places: what move_owner cannot do where no slot is free.
  void swap_owners(int64_t a, int64_t b);
  /// Takes away a copy that is not the owner's.
  void remove(int64_t expert, int64_t device);
  void clear_shadows();
  /// All residents at once: owners [experts], and the experts that each device holds, at most
  /// `residents`; what stays on a device stays in its slot. Clears shadows.
  void set_residents(std::span<const int64_t> owners,
                     const std::vector<std::vector<int64_t>>& held);
  void set_sharing(int64_t expert, Sharing sharing);
  void set_weight(int64_t source, int64_t device, int64_t slot, int64_t weight);

  /// Throws UserError naming expert and device where an invariant does not hold.
  void check() const;

  /// As ops carry it: [code_size(bounds)].
  std::span<const int32_t> codes() const { return codes_; }
  /// Throws as check().
  static Placement decode(const PlacementBounds& bounds, std::span<const int32_t> codes);
  static int64_t code_size(const PlacementBounds& bounds);

  bool operator==(const Placement&) const = default;

 private:
  static size_t index(int64_t i) { return static_cast<size_t>(i); }
  size_t slot_index(int64_t device, int64_t slot) const;
  size_t sharing_index(int64_t expert) const;
  size_t weight_index(int64_t source, int64_t device, int64_t slot) const;
  int64_t find_free(int64_t device, int64_t first, int64_t last) const;
  void check_expert(int64_t expert) const;
  void check_device(int64_t device) const;

  PlacementBounds bounds_;
  // owners [experts], slots [devices, slots], sharings [experts], weights [devices, devices, slots]
  std::vector<int32_t> codes_;
};

/// The rows [begin, end) of one source's tokens for an expert that one slot takes.
struct RowRange {
  int64_t device = 0, slot = 0;
  int64_t begin = 0, end = 0;
};
/// How `rows` tokens of a source for an expert fall to its holders: in the order of their devices
/// (kEven: from holder source % holders on), row r of n to the holder in whose part of [0, 1) r/n
/// falls; ranges are ascending and cover all rows, empty ones are left out.
std::vector<RowRange> share_rows(const Placement& placement, int64_t expert, int64_t source,
                                 int64_t rows);

/// Rows that each slot computes for each source: [devices, slots, sources].
/// Requires: loads of as many sources as devices, and as many experts.
std::vector<int64_t> rows_by_slot(const Placement& placement, const ExpertCounts& loads);

/// What the devices do under a placement, by device: inputs computed (H), inputs received from
/// others (R), in the notation of Pro-Prophet, table II.
struct DeviceLoads {
  std::vector<int64_t> computed, received;
};
DeviceLoads device_loads(const Placement& placement, const ExpertCounts& loads);

/// A copy of an expert that goes from one device to another.
struct Move {
  int64_t expert = 0, from = 0, to = 0, slot = 0;  // slot of `to`
  bool operator==(const Move&) const = default;
};
/// Residents that `next` has where `now` has not, from the nearest resident of `now` (the owner):
/// parameters and optimiser state travel. Where an expert stays on a device but in another slot,
/// from == to.
std::vector<Move> resident_moves(const Placement& now, const Placement& next);
/// Copies that the shadows of a placement need, from their owners, by shadow slot and device:
/// parameters travel there, gradients back.
std::vector<Move> shadow_moves(const Placement& placement);

}  // namespace moe
