#include "engine/placement/eplb.h"

#include <algorithm>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/placement/builtin.h"
#include "engine/placement/policies.h"

namespace moe {
namespace {

struct SharedExperts {
  int64_t experts = 0, group = 0, device = 0;
};

std::vector<SharedExperts> shared_experts(const Placement& now,
                                          const std::vector<std::vector<int64_t>>& groups) {
  std::vector<std::vector<int64_t>> homes(index(now.bounds().experts));
  for (int64_t d = 0; d < now.bounds().devices; ++d) {
    for (int64_t s = 0; s < now.bounds().residents; ++s) {
      if (now.at(d, s) >= 0) homes[index(now.at(d, s))].push_back(d);
    }
  }
  std::vector<SharedExperts> all;
  std::vector<int64_t> with(index(now.bounds().devices));
  for (size_t g = 0; g < groups.size(); ++g) {
    std::fill(with.begin(), with.end(), 0);
    for (const int64_t expert : groups[g]) {
      for (const int64_t d : homes[index(expert)]) ++with[index(d)];
    }
    for (size_t d = 0; d < with.size(); ++d) {
      if (with[d] > 0) all.push_back({with[d], int64_t(g), int64_t(d)});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const SharedExperts& a, const SharedExperts& b) {
    return a.experts > b.experts;
  });
  return all;
}

// Returns, for each device, the experts of the group assigned to the device: [devices].
std::vector<std::vector<int64_t>> on_devices(const Placement& now,
                                             const std::vector<std::vector<int64_t>>& groups) {
  std::vector<std::vector<int64_t>> held(groups.size());
  std::vector<bool> group_done(groups.size()), device_done(groups.size());
  const auto put = [&](size_t group, size_t device) {
    if (group_done[group] || device_done[device]) return;
    held[device] = groups[group];
    group_done[group] = device_done[device] = true;
  };
  for (const SharedExperts& c : shared_experts(now, groups)) put(index(c.group), index(c.device));
  size_t device = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    while (device < groups.size() && device_done[device]) ++device;
    if (device < groups.size()) put(g, device);
  }
  return held;
}

Placement place_eplb(const PlaceInput& input, const PolicyOptions& options) {
  const PlacementBounds& b = input.now.bounds();
  const auto asked = static_cast<int64_t>(options.at("slots"));
  const int64_t room = asked > 0 ? asked : b.residents;
  if (room > b.residents || room * b.devices < b.experts) {
    throw user_error("eplb.slots = {}, allowed: {} to {} slots per device, or 0 for all", room,
                     (b.experts + b.devices - 1) / b.devices, b.residents);
  }
  const std::vector<int64_t> inputs = inputs_of_experts(input.loads);
  const auto nodes = static_cast<int64_t>(options.at("nodes"));
  const auto groups = static_cast<int64_t>(options.at("groups"));
  const Placement next =
      nodes > 1 ? reside(input.now, pack_nodes(inputs, {b.devices, room, nodes, groups}))
                : settle(input.now, pack(inputs, replicate(inputs, room * b.devices, b.devices),
                                         b.devices, room));
  if (pays(input, next, options, "eplb")) return next;
  Placement same = input.now;
  same.clear_shadows();
  return same;
}

}  // namespace

std::vector<int64_t> replicate(const std::vector<int64_t>& inputs, int64_t total, int64_t devices) {
  std::vector<int64_t> residents(inputs.size(), 1);
  for (int64_t left = total - static_cast<int64_t>(inputs.size()); left > 0; --left) {
    size_t most = inputs.size();
    for (size_t e = 0; e < inputs.size(); ++e) {
      if (residents[e] == devices || inputs[e] == 0) continue;
      // Compares inputs / residents without rounding.
      if (most == inputs.size() || inputs[e] * residents[most] > inputs[most] * residents[e]) {
        most = e;
      }
    }
    if (most == inputs.size()) break;
    ++residents[most];
  }
  return residents;
}

std::vector<std::vector<int64_t>> pack(const std::vector<int64_t>& inputs,
                                       const std::vector<int64_t>& residents, int64_t groups,
                                       int64_t room) {
  std::vector<double> each(inputs.size()), sums(index(groups));
  for (size_t e = 0; e < inputs.size(); ++e) {
    each[e] = static_cast<double>(inputs[e]) / static_cast<double>(residents[e]);
  }
  std::vector<int64_t> order(inputs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return each[index(a)] > each[index(b)]; });
  std::vector<std::vector<int64_t>> packed(index(groups));
  for (const int64_t expert : order) {
    for (int64_t i = 0; i < residents[index(expert)]; ++i) {
      size_t least = packed.size();
      for (size_t g = 0; g < packed.size(); ++g) {
        const std::vector<int64_t>& group = packed[g];
        // An expert's residents are placed one after the other, so in a group it can only be last.
        const bool fits = group.size() < index(room) && (group.empty() || group.back() != expert);
        if (fits && (least == packed.size() || sums[g] < sums[least])) least = g;
      }
      if (least == packed.size()) break;
      packed[least].push_back(expert);
      sums[least] += each[index(expert)];
    }
  }
  return packed;
}

std::vector<std::vector<int64_t>> pack_nodes(const std::vector<int64_t>& inputs,
                                             const NodeSlots& slots) {
  const auto experts = static_cast<int64_t>(inputs.size());
  const int64_t groups = slots.groups > 0 ? slots.groups : slots.nodes;
  if (slots.devices % slots.nodes != 0) {
    throw user_error("eplb.nodes = {}, allowed: a divisor of the {} devices", slots.nodes,
                     slots.devices);
  }
  if (groups % slots.nodes != 0 || experts % groups != 0) {
    throw user_error(
        "eplb.groups = {}, allowed: a multiple of the {} nodes that divides the {} experts", groups,
        slots.nodes, experts);
  }
  const int64_t each = experts / groups, per_node = slots.devices / slots.nodes;
  std::vector<int64_t> of_group(index(groups));
  for (size_t e = 0; e < inputs.size(); ++e) of_group[e / index(each)] += inputs[e];
  std::vector<std::vector<int64_t>> held;
  for (const std::vector<int64_t>& node :
       pack(of_group, std::vector<int64_t>(index(groups), 1), slots.nodes, groups / slots.nodes)) {
    std::vector<int64_t> numbers, own;
    for (const int64_t group : node) {
      for (int64_t e = group * each; e < (group + 1) * each; ++e) {
        numbers.push_back(e);
        own.push_back(inputs[index(e)]);
      }
    }
    const auto residents = replicate(own, slots.room * per_node, per_node);
    for (std::vector<int64_t>& device : pack(own, residents, per_node, slots.room)) {
      for (int64_t& e : device) e = numbers[index(e)];
      held.push_back(std::move(device));
    }
  }
  return held;
}

Placement settle(const Placement& now, const std::vector<std::vector<int64_t>>& groups) {
  return reside(now, on_devices(now, groups));
}

Placement reside(const Placement& now, const std::vector<std::vector<int64_t>>& held) {
  std::vector<std::vector<int64_t>> homes(index(now.bounds().experts));
  for (size_t d = 0; d < held.size(); ++d) {
    for (const int64_t expert : held[d]) homes[index(expert)].push_back(static_cast<int64_t>(d));
  }
  std::vector<int64_t> owners;
  for (int64_t e = 0; e < now.bounds().experts; ++e) {
    const std::vector<int64_t>& devices = homes[index(e)];
    const auto holds_now = [&](int64_t d) { return now.is_resident(e, d); };
    const bool stays = std::count(devices.begin(), devices.end(), now.owner(e)) > 0;
    const auto found = std::find_if(devices.begin(), devices.end(), holds_now);
    owners.push_back(stays ? now.owner(e) : found != devices.end() ? *found : devices.front());
  }
  Placement next = now;
  next.set_residents(owners, held);
  for (int64_t e = 0; e < now.bounds().experts; ++e) {
    next.set_sharing(e, homes[index(e)].size() > 1 ? Sharing::kEven : Sharing::kLocal);
  }
  return next;
}

/// EPLB (DeepSeek, 2025): heavy experts get more residents, which share rows evenly and are packed
/// to balance the devices; with `nodes`, within nodes. Parameters and state move.
PlacementPolicy eplb_policy() {
  std::vector<OptionSpec> options = paying_options();
  options.push_back(
      integer_option("slots", 0, 0, 1e6,
                     "residents per device, each with parameters, gradients and state; 0: all"));
  options.push_back(integer_option("nodes", 1, 1, 1e6,
                                   "above 1: groups of experts are packed into so many nodes of "
                                   "consecutive devices, and residents of an expert stay in one"));
  options.push_back(integer_option(
      "groups", 0, 0, 1e6, "groups of consecutive experts, for nodes > 1; 0: one per node"));
  return {
      "eplb",
      "EPLB: heavy experts get more residents, shared evenly and packed so that devices compute as "
      "much; parameters and state move",
      place_eplb,
      std::move(options),
      true,
      Reads::kNothing,
      {.extra_residents = 1}};
}

}  // namespace moe
