#include "engine/placement/placement.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {
namespace {

void check_bound(const char* field, int64_t value, int64_t lo, int64_t hi) {
  if (value < lo || value > hi) {
    throw user_error("placement.{} = {}, allowed: {} to {}", field, value, lo, hi);
  }
}

}  // namespace

void check(const PlacementBounds& bounds) {
  check_bound("experts", bounds.experts, 1, int64_t{1} << 20);
  check_bound("devices", bounds.devices, 1, int64_t{1} << 20);
  check_bound("residents", bounds.residents, 1, bounds.experts);
  check_bound("shadows", bounds.shadows, 0, bounds.experts);
  if (bounds.residents * bounds.devices < bounds.experts) {
    throw user_error(
        "placement.residents = {} per device: {} devices cannot hold {} experts, allowed: at least "
        "{}",
        bounds.residents, bounds.devices, bounds.experts,
        (bounds.experts + bounds.devices - 1) / bounds.devices);
  }
}

Placement::Placement(const PlacementBounds& bounds) : bounds_(bounds) {
  moe::check(bounds);
  codes_.assign(index(code_size(bounds)), 0);
  const auto slots = codes_.begin() + bounds.experts;
  std::fill(slots, slots + bounds.devices * bounds.slots(), -1);
  const int64_t each = bounds.experts / bounds.devices, more = bounds.experts % bounds.devices;
  int64_t expert = 0;
  for (int64_t d = 0; d < bounds.devices; ++d) {
    for (int64_t s = 0; s < each + (d < more ? 1 : 0); ++s, ++expert) {
      codes_[index(expert)] = static_cast<int32_t>(d);
      codes_[slot_index(d, s)] = static_cast<int32_t>(expert);
    }
  }
}

int64_t Placement::code_size(const PlacementBounds& b) {
  const int64_t weights = b.weighted ? b.devices * b.devices * b.slots() : 0;
  return 2 * b.experts + b.devices * b.slots() + weights;
}

size_t Placement::sharing_index(int64_t expert) const {
  return index(bounds_.experts + bounds_.devices * bounds_.slots() + expert);
}

size_t Placement::weight_index(int64_t source, int64_t device, int64_t slot) const {
  return index(2 * bounds_.experts + bounds_.devices * bounds_.slots() +
               (source * bounds_.devices + device) * bounds_.slots() + slot);
}

Sharing Placement::sharing(int64_t expert) const {
  return static_cast<Sharing>(codes_[sharing_index(expert)]);
}

int64_t Placement::slot_of(int64_t expert, int64_t device) const {
  for (int64_t s = 0; s < bounds_.slots(); ++s) {
    if (at(device, s) == expert) return s;
  }
  return -1;
}

bool Placement::is_resident(int64_t expert, int64_t device) const {
  const int64_t slot = slot_of(expert, device);
  return slot >= 0 && slot < bounds_.residents;
}

std::vector<int64_t> Placement::holders(int64_t expert) const {
  std::vector<int64_t> devices;
  for (int64_t d = 0; d < bounds_.devices; ++d) {
    if (holds(d, expert)) devices.push_back(d);
  }
  return devices;
}

int64_t Placement::not_taken(int64_t expert) const {
  if (sharing(expert) != Sharing::kWeighted) return -1;
  std::vector<std::pair<int64_t, int64_t>> held;  // device, slot
  for (const int64_t d : holders(expert)) held.emplace_back(d, slot_of(expert, d));
  for (int64_t source = 0; source < bounds_.devices; ++source) {
    const auto takes = [&](const auto& at) { return weight(source, at.first, at.second) > 0; };
    if (std::none_of(held.begin(), held.end(), takes)) return source;
  }
  return -1;
}

int64_t Placement::free_residents(int64_t device) const {
  int64_t n = 0;
  for (int64_t s = 0; s < bounds_.residents; ++s) n += at(device, s) < 0 ? 1 : 0;
  return n;
}

int64_t Placement::free_shadows(int64_t device) const {
  int64_t n = 0;
  for (int64_t s = bounds_.residents; s < bounds_.slots(); ++s) n += at(device, s) < 0 ? 1 : 0;
  return n;
}

int64_t Placement::weight(int64_t source, int64_t device, int64_t slot) const {
  return codes_[weight_index(source, device, slot)];
}

int64_t Placement::find_free(int64_t device, int64_t first, int64_t last) const {
  for (int64_t s = first; s < last; ++s) {
    if (at(device, s) < 0) return s;
  }
  return -1;
}

void Placement::check_expert(int64_t expert) const {
  if (expert < 0 || expert >= bounds_.experts) {
    throw user_error("placement: expert {}, allowed: 0 to {}", expert, bounds_.experts - 1);
  }
}

void Placement::check_device(int64_t device) const {
  if (device < 0 || device >= bounds_.devices) {
    throw user_error("placement: device {}, allowed: 0 to {}", device, bounds_.devices - 1);
  }
}

void Placement::add_shadow(int64_t expert, int64_t device, int64_t shadow) {
  check_expert(expert);
  check_device(device);
  if (holds(device, expert)) {
    throw user_error(
        "placement: device {} cannot get a shadow of expert {}, because it holds the expert "
        "already",
        device, expert);
  }
  if (shadow < -1 || shadow >= bounds_.shadows) {
    throw user_error("placement: shadow slot {}, allowed: 0 to {}", shadow, bounds_.shadows - 1);
  }
  const int64_t slot = shadow < 0 ? find_free(device, bounds_.residents, bounds_.slots())
                                  : bounds_.residents + shadow;
  if (slot < 0 || at(device, slot) >= 0) {
    throw user_error(
        "placement: no room for a shadow of expert {} on device {}: {}", expert, device,
        shadow < 0 ? fmt::format("all of its {} shadow slots are in use", bounds_.shadows)
                   : fmt::format("its shadow slot number {} is in use", shadow));
  }
  codes_[slot_index(device, slot)] = static_cast<int32_t>(expert);
}

void Placement::add_resident(int64_t expert, int64_t device) {
  check_expert(expert);
  check_device(device);
  if (holds(device, expert)) {
    throw user_error(
        "placement: device {} cannot become a resident of expert {}, because it holds the expert "
        "already",
        device, expert);
  }
  const int64_t slot = find_free(device, 0, bounds_.residents);
  if (slot < 0) {
    throw user_error(
        "placement: no room for expert {} on device {}: all of its {} resident slots are in use",
        expert, device, bounds_.residents);
  }
  codes_[slot_index(device, slot)] = static_cast<int32_t>(expert);
}

void Placement::move_owner(int64_t expert, int64_t device) {
  check_expert(expert);
  check_device(device);
  const int64_t from = owner(expert);
  if (from == device) return;
  if (!is_resident(expert, device)) {
    const int64_t shadow = slot_of(expert, device);
    if (find_free(device, 0, bounds_.residents) < 0) {
      throw user_error(
          "placement: no room to move expert {} to device {}: all of its {} resident slots are in "
          "use",
          expert, device, bounds_.residents);
    }
    if (shadow >= 0) codes_[slot_index(device, shadow)] = -1;
    add_resident(expert, device);
  }
  codes_[index(expert)] = static_cast<int32_t>(device);
  remove(expert, from);
}

void Placement::swap_owners(int64_t a, int64_t b) {
  check_expert(a);
  check_expert(b);
  const int64_t of_a = owner(a), of_b = owner(b);
  if (of_a == of_b) return;
  if (holds(of_a, b) || holds(of_b, a)) {
    throw user_error(
        "placement: experts {} and {} cannot be swapped: the owner of one already holds the other",
        a, b);
  }
  std::swap(codes_[slot_index(of_a, slot_of(a, of_a))], codes_[slot_index(of_b, slot_of(b, of_b))]);
  std::swap(codes_[index(a)], codes_[index(b)]);
}

void Placement::remove(int64_t expert, int64_t device) {
  check_expert(expert);
  check_device(device);
  if (owner(expert) == device) {
    throw user_error(
        "placement: device {} owns expert {}, so the expert cannot be removed there; first move "
        "the owner to another device",
        device, expert);
  }
  const int64_t slot = slot_of(expert, device);
  if (slot < 0)
    throw user_error("placement: device {} holds no copy or resident of expert {} to remove",
                     device, expert);
  codes_[slot_index(device, slot)] = -1;
}

void Placement::clear_shadows() {
  for (int64_t d = 0; d < bounds_.devices; ++d) {
    for (int64_t s = bounds_.residents; s < bounds_.slots(); ++s) codes_[slot_index(d, s)] = -1;
  }
}

void Placement::set_residents(std::span<const int64_t> owners,
                              const std::vector<std::vector<int64_t>>& held) {
  MOE_CHECK(owners.size() == index(bounds_.experts) && held.size() == index(bounds_.devices),
            "placement: owners of {} experts and residents of {} devices are given, expected {} "
            "experts and {} devices",
            owners.size(), held.size(), bounds_.experts, bounds_.devices);
  Placement next = *this;
  next.clear_shadows();
  for (int64_t d = 0; d < bounds_.devices; ++d) {
    const std::vector<int64_t>& experts = held[index(d)];
    for (int64_t s = 0; s < bounds_.residents; ++s) {
      if (std::find(experts.begin(), experts.end(), at(d, s)) == experts.end()) {
        next.codes_[slot_index(d, s)] = -1;
      }
    }
    for (const int64_t expert : experts) {
      if (!next.holds(d, expert)) next.add_resident(expert, d);
    }
  }
  std::copy(owners.begin(), owners.end(), next.codes_.begin());
  next.check();
  *this = std::move(next);
}

void Placement::set_sharing(int64_t expert, Sharing sharing) {
  check_expert(expert);
  if (sharing == Sharing::kWeighted && !bounds_.weighted) {
    throw user_error(
        "placement: expert {} cannot be shared by weights, because this plan has none (weighted = "
        "false); share it evenly or locally",
        expert);
  }
  codes_[sharing_index(expert)] = static_cast<int32_t>(sharing);
}

void Placement::set_weight(int64_t source, int64_t device, int64_t slot, int64_t weight) {
  check_device(source);
  check_device(device);
  if (!bounds_.weighted)
    throw user_error(
        "placement: no weight can be set, because this plan has none (weighted = false)");
  if (slot < 0 || slot >= bounds_.slots() || weight < 0 || weight > kMaxWeight) {
    throw user_error(
        "placement: weight {} of slot {} on device {}, allowed: weights 0 to {}, slots 0 to {}",
        weight, slot, device, kMaxWeight, bounds_.slots() - 1);
  }
  codes_[weight_index(source, device, slot)] = static_cast<int32_t>(weight);
}

void Placement::check() const {
  std::vector<int64_t> seen(index(bounds_.experts), -1);
  for (int64_t d = 0; d < bounds_.devices; ++d) {
    for (int64_t s = 0; s < bounds_.slots(); ++s) {
      const int64_t expert = at(d, s);
      if (expert == -1) continue;
      check_expert(expert);
      if (seen[index(expert)] == d) {
        throw user_error("placement: device {} holds expert {} in more than one slot", d, expert);
      }
      seen[index(expert)] = d;
    }
  }
  const size_t weights = weight_index(0, 0, 0);
  for (size_t i = weights; i < codes_.size(); ++i) {
    check_bound("weight", codes_[i], 0, kMaxWeight);
  }
  for (int64_t e = 0; e < bounds_.experts; ++e) {
    if (owner(e) < 0 || owner(e) >= bounds_.devices || !is_resident(e, owner(e))) {
      throw user_error(
          "placement: expert {} is lost: its owner, device {}, does not hold it in a resident slot",
          e, owner(e));
    }
    const auto code = codes_[sharing_index(e)];
    if (code < 0 || code > (bounds_.weighted ? 2 : 1)) {
      throw user_error("placement: code {} for the sharing of expert {}, allowed: 0 to {}", code, e,
                       bounds_.weighted ? 2 : 1);
    }
    if (const int64_t source = not_taken(e); source >= 0) {
      throw user_error(
          "placement: no holder of expert {} takes the tokens of device {}; set a weight above 0",
          e, source);
    }
  }
}

Placement Placement::decode(const PlacementBounds& bounds, std::span<const int32_t> codes) {
  Placement placement(bounds);
  if (static_cast<int64_t>(codes.size()) != code_size(bounds)) {
    throw user_error("placement: the encoded placement has {} numbers, expected {}", codes.size(),
                     code_size(bounds));
  }
  placement.codes_.assign(codes.begin(), codes.end());
  placement.check();
  return placement;
}

std::vector<Move> resident_moves(const Placement& now, const Placement& next) {
  const PlacementBounds& b = next.bounds();
  MOE_CHECK(
      now.bounds() == b,
      "resident_moves: the bounds of the placements `now` and `next` must be equal, but differ");
  std::vector<Move> moves;
  for (int64_t d = 0; d < b.devices; ++d) {
    for (int64_t s = 0; s < b.residents; ++s) {
      const int64_t expert = next.at(d, s);
      if (expert < 0 || now.at(d, s) == expert) continue;
      const int64_t from = now.is_resident(expert, d) ? d : now.owner(expert);
      moves.push_back({expert, from, d, s});
    }
  }
  return moves;
}

std::vector<Move> shadow_moves(const Placement& placement) {
  const PlacementBounds& b = placement.bounds();
  std::vector<Move> moves;
  for (int64_t s = b.residents; s < b.slots(); ++s) {
    for (int64_t d = 0; d < b.devices; ++d) {
      const int64_t expert = placement.at(d, s);
      if (expert >= 0) moves.push_back({expert, placement.owner(expert), d, s});
    }
  }
  return moves;
}

}  // namespace moe
