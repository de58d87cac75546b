#include "engine/exec/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "engine/base/errors.h"
#include "engine/exec/safetensors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"
#include "engine/ops/slices.h"

namespace moe {
namespace {

/// Suffixes of an optimizer's states, appended to the name of the parameter.
constexpr const char* kStateSuffixes[] = {".m", ".v", ".master"};

/// Returns the group over which the states of a parameter are sliced; size = 1: they are not.
Group state_slices(const Graph& graph, TensorId parameter) {
  for (const Op& op : graph.ops()) {
    if (!op.kind.valid() || !ops::is_sliced(op) || op.inputs[0] != parameter) continue;
    return group_of(graph, op);
  }
  return {1, 1};
}

Persistent place(const Graph& graph, TensorId id, Shape full, const Grid& grid,
                 const std::vector<PlacedLayer>& placed, const Group& sliced = {1, 1}) {
  const Tensor& tensor = graph.tensor(id);
  const Held& held = tensor.held;
  int64_t holders = parts(grid, held);
  const int64_t local = num_elements(tensor.shape);
  if (sliced.size > 1) {
    const int64_t part = num_elements(full) / holders;
    MOE_CHECK(local == sliced.slice_length(part),
              "state {} must have {} elements per rank, a slice of {}, but has {}", tensor.name,
              sliced.slice_length(part), part, local);
    return {.name = tensor.name,
            .tensor = id,
            .shape = std::move(full),
            .holders = holders,
            .local = local,
            .part = part,
            .sliced = sliced,
            .held = held,
            .cuts = cuts(grid, held)};
  }
  // Every rank holds all experts when inference keeps them in host memory.
  if (tensor.held.moe && num_elements(full) == local) holders = 1;
  for (size_t i = 0; tensor.held.moe && i < placed.size(); ++i) {
    if (!tensor.name.starts_with(fmt::format("b{}.", placed[i].layer))) continue;
    const PlacementBounds& b = placed[i].bounds;
    if (num_elements(full) * b.residents == local * b.experts) {
      return {tensor.name, id,    std::move(full), b.devices,
              local,       local, sliced,          static_cast<int32_t>(i)};
    }
  }
  if (num_elements(full) != local * holders) {
    throw user_error(
        "tensor {} has {} elements per rank in the graph, but must have {}: the model's tensor has "
        "{} elements, in equal parts on {} ranks",
        tensor.name, local, num_elements(full) / holders, num_elements(full), holders);
  }
  return {.name = tensor.name,
          .tensor = id,
          .shape = std::move(full),
          .holders = holders,
          .local = local,
          .part = local,
          .held = held,
          .cuts = cuts(grid, held)};
}

std::vector<PlacedLayer> placed_layers(const Graph& graph) {
  std::vector<PlacedLayer> layers;
  for (const OpId op : graph.op_ids()) {
    if (graph.def(op).moe != MoeOp::kPlace) continue;
    if (graph.op(op).micro > 0) continue;  // all micro-batches have the state of the first
    layers.push_back({graph.op(op).layer, input_of(graph, graph.op(op), Role::kPlacement),
                      ops::bounds_of(graph.op(op))});
  }
  return layers;
}

/// Throws RunError unless all residents of an expert, in all groups of ranks that hold all experts,
/// have the same bits as its owner in the first group.
void check_residents(const PersistentTensors& all, const Persistent& p, const AllBuffers& ranks,
                     size_t element_bytes) {
  const auto rank_of = [&](int64_t device) { return static_cast<size_t>(p.first_rank + device); };
  const Placement placement =
      placement_of(all.placed[static_cast<size_t>(p.layer)], *ranks[rank_of(0)]);
  const size_t bytes = static_cast<size_t>(p.size() / placement.bounds().experts) * element_bytes;
  const auto data = [&](int64_t rank, int64_t expert) {
    return static_cast<const std::byte*>(ranks[rank_of(rank)]->at(p.tensor)) +
           static_cast<size_t>(placement.slot_of(expert, rank % p.holders)) * bytes;
  };
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    const int64_t owner = placement.owner(e);
    for (int64_t r = 0; r < all.num_ranks; ++r) {
      if (!placement.is_resident(e, r % p.holders) ||
          std::memcmp(data(r, e), data(owner, e), bytes) == 0) {
        continue;
      }
      throw run_error("parameter or state {}: ranks {} and {} hold different values of expert {}",
                      p.name, rank_of(owner), rank_of(r), e);
    }
  }
}

/// Throws RunError unless ranks a and b have the same bits of `p`, where rank b holds it as
/// `other`.
void check_equal(const Persistent& p, const Persistent& other, size_t a, size_t b,
                 const AllBuffers& ranks, size_t bytes) {
  if (std::memcmp(ranks[a]->at(p.tensor), ranks[b]->at(other.tensor), bytes) == 0) return;
  throw run_error("parameter or state {}: ranks {} and {} hold different values", p.name, a, b);
}

/// Throws RunError unless each of the `num_ranks` ranks of its pipeline rank has the same bits of
/// `p` as the last rank before it that holds the same part. Slots of a placement may hold no
/// expert; check_residents() compares the others.
void check_copies(const Persistent& p, const AllBuffers& ranks, int64_t num_ranks, size_t bytes) {
  if (p.layer >= 0) return;
  // Neighbours that hold the same part may have a slice of it each.
  const int64_t same = p.sliced.size > 1 && p.sliced.stride == 1 ? 1 : p.held.same;
  const int64_t once = p.holders * same * p.sliced.size;
  for (int64_t r = 0; r < num_ranks; ++r) {
    const int64_t like = r % same > 0 ? r - 1 : r - once;
    if (like < 0) continue;
    check_equal(p, p, static_cast<size_t>(p.first_rank + like),
                static_cast<size_t>(p.first_rank + r), ranks, bytes);
  }
}

/// Returns the persistent tensors of a program.
PersistentTensors tensors_of(const Plan& plan) {
  const Graph& graph = plan.graph;
  const bool whole = plan.step_ops.empty();
  const Grid grid = plan.spec.model->grid(graph.num_ranks);
  PersistentTensors all;
  all.num_ranks = graph.num_ranks;
  all.placed = placed_layers(graph);
  for (const ParamInfo& info : plan.spec.model->parameters) {
    const TensorId id = graph.find_tensor(info.name);
    if (!id.valid() && whole) {
      throw user_error("the graph lacks the model's parameter {}", info.name);
    }
    if (!id.valid()) {
      all.parameters.push_back({.name = info.name, .shape = info.shape});
      continue;
    }
    all.parameters.push_back(place(graph, id, info.shape, grid, all.placed));
    for (const char* suffix : kStateSuffixes) {
      const TensorId state = graph.find_tensor(info.name + suffix);
      if (!state.valid()) continue;
      all.states.push_back(
          place(graph, state, info.shape, grid, all.placed, state_slices(graph, id)));
    }
  }
  for (const ParamInfo& info : plan.spec.model->states) {
    const TensorId id = graph.find_tensor(info.name);
    if (!id.valid() && whole) throw user_error("the graph lacks the model's state {}", info.name);
    all.states.push_back(id.valid() ? place(graph, id, info.shape, grid, all.placed)
                                    : Persistent{.name = info.name, .shape = info.shape});
  }
  for (size_t t = 0; t < graph.tensors().size(); ++t) {
    const Tensor& tensor = graph.tensors()[t];
    if (std::any_of(all.placed.begin(), all.placed.end(),
                    [&](const PlacedLayer& layer) { return layer.state.index() == t; })) {
      continue;
    }
    const auto known = [&](const std::vector<Persistent>& in) {
      return std::any_of(in.begin(), in.end(),
                         [&](const Persistent& p) { return p.name == tensor.name; });
    };
    if ((tensor.kind == TensorKind::kParam && !known(all.parameters)) ||
        (tensor.kind == TensorKind::kState && !known(all.states))) {
      throw user_error("the graph has the {} {}, which the model does not have",
                       name_of(tensor.kind), tensor.name);
    }
  }
  return all;
}

}  // namespace

std::vector<PersistentTensors> persistents_by_program(const Plan& plan) {
  if (plan.programs.empty()) return {tensors_of(plan)};
  std::vector<PersistentTensors> programs;
  std::set<std::string> held;
  for (const auto& program : plan.programs) {
    PersistentTensors& own = programs.emplace_back(tensors_of(*program));
    for (std::vector<Persistent>* const list : {&own.parameters, &own.states}) {
      for (Persistent& p : *list) p.copy = p.tensor.valid() && !held.insert(p.name).second;
    }
  }
  return programs;
}

PersistentTensors persistent_tensors(const Plan& plan) {
  std::vector<PersistentTensors> programs = persistents_by_program(plan);
  if (programs.size() == 1) return std::move(programs[0]);
  PersistentTensors all;
  all.num_ranks = plan.spec.num_ranks;
  std::map<std::string, Persistent> held;  // by name
  for (size_t p = 0; p < programs.size(); ++p) {
    const int64_t first = static_cast<int64_t>(p) * plan.spec.num_ranks;
    const auto layers = static_cast<int32_t>(all.placed.size());
    for (PlacedLayer layer : programs[p].placed) {
      layer.first_rank = first;
      all.placed.push_back(layer);
    }
    for (const std::vector<Persistent>* const list :
         {&programs[p].parameters, &programs[p].states}) {
      for (Persistent one : *list) {
        if (!one.tensor.valid()) continue;
        one.first_rank = first;
        if (one.layer >= 0) one.layer += layers;
        if (one.copy) {
          all.copies.push_back(std::move(one));
        } else {
          held.emplace(one.name, std::move(one));
        }
      }
    }
  }
  const auto take = [&](const std::string& name, std::vector<Persistent>& to, bool must) {
    const auto found = held.find(name);
    MOE_CHECK(found != held.end() || !must, "no pipeline rank has {}", name);
    if (found != held.end()) to.push_back(found->second);
  };
  const Model& model = *plan.spec.model;
  for (const ParamInfo& info : model.parameters) {
    take(info.name, all.parameters, true);
    for (const char* suffix : kStateSuffixes) take(info.name + suffix, all.states, false);
  }
  for (const ParamInfo& info : model.states) take(info.name, all.states, true);
  return all;
}

Placement placement_of(const PlacedLayer& layer, const RankBuffers& buffers) {
  return Placement::decode(layer.bounds, {static_cast<const int32_t*>(buffers.at(layer.state)),
                                          static_cast<size_t>(Placement::code_size(layer.bounds))});
}

void add_slices_on(const Persistent& p, int64_t rank, std::vector<TensorSlice>& to) {
  const Slice own = p.sliced.slice(p.part, p.sliced.place(rank));
  const int64_t number = rank / p.held.same % p.holders;
  const int64_t cut = number % p.cuts, first_cut = number / p.cuts * p.cuts * p.part;
  int64_t runs = p.held.blocks;  // of neighbours in the full tensor
  for (int8_t axis = 0; axis < p.held.split; ++axis) runs *= p.shape[static_cast<size_t>(axis)];
  if (p.held.split > 0) runs = runs * p.cuts / p.holders;
  const int64_t run = p.part / runs;
  for (int64_t i = own.first / run; i * run < own.first + own.n; ++i) {
    const int64_t first = std::max(own.first, i * run);
    const int64_t last = std::min(own.first + own.n, (i + 1) * run);
    const int64_t in_full = first_cut + (i * p.cuts + cut) * run + first - i * run;
    to.push_back({p.first_rank + rank, first - own.first, in_full, last - first});
  }
}

std::vector<TensorSlice> slices(const PersistentTensors& all, const Persistent& p,
                                const RankBuffers& buffers) {
  std::vector<TensorSlice> result;
  if (p.layer < 0) {
    for (int64_t h = 0; h < p.holders; ++h) {
      for (int64_t place = 0; place < p.sliced.size; ++place) {
        add_slices_on(p, p.sliced.member(h * p.held.same, place), result);
      }
    }
    std::sort(result.begin(), result.end(),
              [](const TensorSlice& a, const TensorSlice& b) { return a.first < b.first; });
    return result;
  }
  const Placement placement = placement_of(all.placed[static_cast<size_t>(p.layer)], buffers);
  const int64_t each = p.size() / placement.bounds().experts;
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    const int64_t owner = placement.owner(e);
    result.push_back({p.first_rank + owner, placement.slot_of(e, owner) * each, e * each, each});
  }
  return result;
}

std::vector<TensorSlice> slices_on(const PersistentTensors& all, const Persistent& p,
                                   const RankBuffers& buffers, int64_t rank) {
  std::vector<TensorSlice> result;
  if (p.layer < 0) {
    add_slices_on(p, rank, result);
    return result;
  }
  const Placement placement = placement_of(all.placed[static_cast<size_t>(p.layer)], buffers);
  const int64_t each = p.size() / placement.bounds().experts;
  for (int64_t s = 0; s < placement.bounds().residents; ++s) {
    const int64_t expert = placement.at(rank % p.holders, s);
    if (expert >= 0) result.push_back({rank, s * each, expert * each, each});
  }
  return result;
}

template <class T>
void initialise(const Plan& plan, const PersistentTensors& all, const RankBuffers& buffers,
                int64_t rank, const RunOptions& options) {
  for (const PlacedLayer& layer : all.placed) {
    const Placement first(layer.bounds);
    std::copy(first.codes().begin(), first.codes().end(),
              static_cast<int32_t*>(buffers.at(layer.state)));
  }
  const auto fill = [&](const Persistent& p, const ParamInit& value, size_t number) {
    T* const x = static_cast<T*>(buffers.at(p.tensor));
    for (const TensorSlice& s : slices_on(all, p, buffers, rank)) {
      for (int64_t i = 0; i < s.n; ++i) {
        x[s.at + i] = static_cast<T>(value(static_cast<uint64_t>(s.first + i), number));
      }
    }
  };
  const ParamInit drawn = options.init ? options.init : ParamInit(reference_init);
  const bool all_given = options.values != nullptr;
  const std::vector<ParamInfo>& infos = plan.spec.model->parameters;
  for (size_t t = 0; t < infos.size(); ++t) {
    const Persistent& p = all.parameters[t];
    if (!p.tensor.valid()) continue;
    const T rest(infos[t].init == ParamInfo::Init::kOne ? 1 : 0);
    std::fill_n(static_cast<T*>(buffers.at(p.tensor)), p.local, all_given ? T(0) : rest);
    if (all_given) {
      fill(p, options.values, t);
    } else if (infos[t].init == ParamInfo::Init::kUniform) {
      fill(p, drawn, t);
    }
  }
  for (const Persistent& s : all.states) {
    if (s.tensor.valid()) std::fill_n(static_cast<T*>(buffers.at(s.tensor)), s.local, T(0));
  }
  const size_t own = plan.spec.model->states.size(), first = all.states.size() - own;
  for (size_t i = 0; all_given && i < own; ++i) {
    if (!all.states[first + i].tensor.valid()) continue;
    fill(all.states[first + i], options.values, infos.size() + i);
  }
  Safetensors::forget_read();  // from which the values may come
}

template <class T>
ParamInit full_values(const Plan& plan, const PersistentTensors& all, const AllBuffers& ranks) {
  std::vector<const Persistent*> tensors;
  for (const Persistent& p : all.parameters) tensors.push_back(&p);
  const size_t own = plan.spec.model->states.size();
  for (size_t i = all.states.size() - own; i < all.states.size(); ++i) {
    tensors.push_back(&all.states[i]);
  }
  std::vector<std::vector<TensorSlice>> pieces;  // in the order of the full tensor
  for (const Persistent* const p : tensors) {
    pieces.push_back(slices(all, *p, *ranks[static_cast<size_t>(p->first_rank)]));
  }
  return [tensors, pieces, &ranks](uint64_t element, uint64_t tensor) {
    const auto i = static_cast<int64_t>(element);
    const auto after =
        std::upper_bound(pieces[tensor].begin(), pieces[tensor].end(), i,
                         [](int64_t value, const TensorSlice& s) { return value < s.first; });
    const TensorSlice& s = *(after - 1);
    const auto* const x =
        static_cast<const T*>(ranks[static_cast<size_t>(s.rank)]->at(tensors[tensor]->tensor));
    return static_cast<double>(x[s.at + i - s.first]);
  };
}

template <class T>
Measure measure(const T* x, int64_t n, int64_t first) {
  Measure sum;
  int64_t weight = first % 13;
  for (int64_t i = 0; i < n; ++i) {
    const auto v = static_cast<double>(x[i]);
    sum.sum_of_squares += v * v;
    sum.projection += v * static_cast<double>(weight - 6);
    weight = weight == 12 ? 0 : weight + 1;
  }
  return sum;
}

Update update_of(const Graph& graph, const PersistentTensors& all, OpId id) {
  const Op& op = graph.op(id);
  const std::vector<int>& mutates = graph.def(id).mutates;
  Update update;
  if (mutates.empty() || graph.tensor(op.inputs[0]).kind != TensorKind::kParam) return update;
  const TensorId parameter = op.inputs[static_cast<size_t>(mutates[0])];
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const bool overwritten =
        std::find(mutates.begin(), mutates.end(), static_cast<int>(i)) != mutates.end();
    if (!overwritten) update.gradient = i;
  }
  for (size_t p = 0; p < all.parameters.size(); ++p) {
    if (all.parameters[p].tensor == parameter) update.parameter = static_cast<int64_t>(p);
  }
  if (ops::is_sliced(op)) update.sliced = group_of(graph, op);
  return update;
}

template <class T>
void add_measure(const PersistentTensors& all, const Update& update, const RankBuffers& buffers,
                 int64_t rank, const T* gradient, Measure& sum) {
  Persistent p = all.parameters[static_cast<size_t>(update.parameter)];
  p.sliced = update.sliced;  // as the gradient is, while every rank has the whole parameter
  if (p.sliced.size > 1) p.layer = -1;  // no placement moves what is sliced
  for (const TensorSlice& s : slices(all, p, buffers)) {
    if (s.rank != rank) continue;
    const Measure part = measure(gradient + s.at, s.n, s.first);
    sum.sum_of_squares += part.sum_of_squares;
    sum.projection += part.projection;
  }
}

template <class T>
void measure_parameters(const PersistentTensors& all, const AllBuffers& ranks, RunResult& result) {
  const int64_t num_ranks = all.num_ranks;
  result.digest = kFnvStart;
  for (const Persistent& p : all.parameters) {
    Measure sum;
    check_copies(p, ranks, num_ranks, static_cast<size_t>(p.local) * sizeof(T));
    if (p.layer >= 0) check_residents(all, p, ranks, sizeof(T));
    for (const TensorSlice& s : slices(all, p, *ranks[static_cast<size_t>(p.first_rank)])) {
      const T* x = static_cast<const T*>(ranks[static_cast<size_t>(s.rank)]->at(p.tensor)) + s.at;
      const Measure part = measure(x, s.n, s.first);
      sum.sum_of_squares += part.sum_of_squares;
      sum.projection += part.projection;
      result.digest = fnv1a(result.digest, x, static_cast<size_t>(s.n) * sizeof(T));
    }
    result.param_l2[p.name] = std::sqrt(sum.sum_of_squares);
    result.param_projection[p.name] = sum.projection;
  }
  for (const Persistent& s : all.states) {
    check_copies(s, ranks, num_ranks, static_cast<size_t>(s.local) * sizeof(T));
  }
  for (const Persistent& copy : all.copies) {
    for (const std::vector<Persistent>* const list : {&all.parameters, &all.states}) {
      for (const Persistent& p : *list) {
        if (p.name != copy.name) continue;
        for (int64_t r = 0; r < num_ranks; ++r) {
          check_equal(p, copy, static_cast<size_t>(p.first_rank + r),
                      static_cast<size_t>(copy.first_rank + r), ranks,
                      static_cast<size_t>(p.local) * sizeof(T));
        }
      }
    }
  }
}

template void initialise<float>(const Plan&, const PersistentTensors&, const RankBuffers&, int64_t,
                                const RunOptions&);
template void initialise<double>(const Plan&, const PersistentTensors&, const RankBuffers&, int64_t,
                                 const RunOptions&);
template ParamInit full_values<float>(const Plan&, const PersistentTensors&, const AllBuffers&);
template ParamInit full_values<double>(const Plan&, const PersistentTensors&, const AllBuffers&);
template Measure measure(const float*, int64_t, int64_t);
template Measure measure(const double*, int64_t, int64_t);
template void add_measure(const PersistentTensors&, const Update&, const RankBuffers&, int64_t,
                          const float*, Measure&);
template void add_measure(const PersistentTensors&, const Update&, const RankBuffers&, int64_t,
                          const double*, Measure&);
template void measure_parameters<float>(const PersistentTensors&, const AllBuffers&, RunResult&);
template void measure_parameters<double>(const PersistentTensors&, const AllBuffers&, RunResult&);

}  // namespace moe
