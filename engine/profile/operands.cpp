#include "engine/profile/operands.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/profile/indices.h"
#include "kernels/bf16.h"

namespace moe {
namespace {

constexpr Bytes kPageBytes = 4096;
constexpr uint64_t kValueStream = 0xda7a;
constexpr size_t kNumValues = 1 << 16;

/// Bytes of a graph's tensors at the element size of the execution.
struct Sizes {
  const Graph& graph;
  Bytes element_bytes;
  Bytes operator()(TensorId t) const { return tensor_bytes(graph.tensor(t), element_bytes); }
};

Bytes padded(Bytes bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Returns the bytes that one call of the op reads and writes, at least 1.
Bytes traffic(const Sizes& size, const Op& op) {
  Bytes bytes = 0;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (const TensorId t : *list) bytes += t.valid() ? size(t) : 0;
  }
  return std::max<Bytes>(bytes, 1);
}

bool mentions(const std::vector<TensorId>& list, TensorId t) {
  return std::find(list.begin(), list.end(), t) != list.end();
}

bool lasting(TensorKind kind) {
  return kind == TensorKind::kParam || kind == TensorKind::kState || kind == TensorKind::kInput;
}

/// Returns the bytes that a step touches before it uses the same address again: all that the step
/// has in memory, which is parameters, their momentum and gradients, and the activations of the
/// forward pass. At most kFarBytes.
Bytes step_bytes(const Sizes& size) {
  Bytes bytes = 0;
  for (const Tensor& t : size.graph.tensors()) {
    if (t.kind == TensorKind::kParam) bytes += 3 * tensor_bytes(t, size.element_bytes);
    if (t.kind == TensorKind::kInput) bytes += tensor_bytes(t, size.element_bytes);
  }
  for (const Op& op : size.graph.ops()) {
    if (!op.kind.valid() || op.phase != Phase::kForward) continue;
    for (const TensorId t : op.outputs) bytes += size(t);
  }
  return std::min(bytes, ProfileOperands::kFarBytes);
}

/// Returns the bytes touched between the previous use of tensor t and the op, in program order;
/// `far` if these are more bytes, or if t exists across steps.
Bytes reuse_distance(const Sizes& size, OpId id, TensorId t, Bytes far) {
  const Graph& graph = size.graph;
  if (lasting(graph.tensor(t).kind)) return far;
  Bytes distance = 0;
  for (size_t i = id.index(); i > 0 && distance < far; --i) {
    const Op& before = graph.ops()[i - 1];
    if (!before.kind.valid()) continue;
    if (mentions(before.outputs, t) || mentions(before.inputs, t)) return distance;
    distance += traffic(size, before);
  }
  return far;
}

/// Values of both signs with magnitudes in [0.25, 0.75).
const std::vector<float>& sane_values() {
  static const std::vector<float> values = [] {
    std::vector<float> v(kNumValues);
    for (size_t i = 0; i < v.size(); ++i) {
      const uint32_t r = random24(i, kValueStream);
      const float magnitude = 0.25f + static_cast<float>(r >> 1) * 0x1p-24f;
      v[i] = (r & 1) != 0 ? magnitude : -magnitude;
    }
    return v;
  }();
  return values;
}

/// Writes to `to` the values that the input has before a call.
void fill(const Sizes& size, OpId id, size_t input, const WorkContext& context, std::byte* to) {
  const Graph& graph = size.graph;
  const Tensor& tensor = graph.tensor(graph.op(id).inputs[input]);
  if (tensor.dtype == DType::kI32) {
    const std::vector<int32_t> values = index_values(graph, id, input, context);
    MOE_CHECK(static_cast<int64_t>(values.size()) == stored_elements(tensor),
              "profile of op '{}': input {} has {} elements, but {} values were made up",
              graph.op(id).name, input, stored_elements(tensor), values.size());
    std::memcpy(to, values.data(), values.size() * sizeof(int32_t));
    return;
  }
  const auto bytes = static_cast<size_t>(tensor_bytes(tensor, size.element_bytes));
  if (dtype_bytes(tensor.dtype, size.element_bytes) == sizeof(kernels::Bf16)) {
    auto* const narrow = reinterpret_cast<kernels::Bf16*>(to);
    for (size_t i = 0; i < bytes / sizeof(*narrow); ++i) {
      narrow[i] = kernels::to_bf16(sane_values()[i % kNumValues]);
    }
    return;
  }
  for (size_t at = 0; at < bytes; at += kNumValues * sizeof(float)) {
    std::memcpy(to + at, sane_values().data(), std::min(bytes - at, kNumValues * sizeof(float)));
  }
  if (tensor.kind != TensorKind::kState) return;
  // States must not be negative: the optimizer takes the square root of a second moment.
  auto* const state = reinterpret_cast<float*>(to);
  for (size_t i = 0; i < bytes / sizeof(float); ++i) state[i] = std::abs(state[i]);
}

/// Returns a stride that visits all of `count` copies in an order that a hardware prefetcher does
/// not recognize.
int64_t scattering_stride(int64_t count) {
  int64_t stride = std::max<int64_t>(1, count * 618 / 1000);
  while (std::gcd(stride, count) > 1) ++stride;
  return stride;
}

}  // namespace

std::vector<std::pair<int, int>> dying_aliases(const Graph& graph, OpId id) {
  std::vector<std::pair<int, int>> pairs;
  for (const auto& pair : alias_pairs(graph, graph.op(id))) {
    const TensorId t = graph.op(id).inputs[static_cast<size_t>(pair.second)];
    bool read_later = false;
    for (size_t i = id.index() + 1; i < graph.num_ops(); ++i) {
      const Op& later = graph.ops()[i];
      read_later |= later.kind.valid() && mentions(later.inputs, t);
    }
    if (!read_later && !lasting(graph.tensor(t).kind)) pairs.push_back(pair);
  }
  return pairs;
}

std::vector<int64_t> operand_copies(const Graph& graph, OpId id, Bytes element_bytes) {
  const Op& op = graph.op(id);
  const Sizes size = {graph, element_bytes};
  const Bytes far = step_bytes(size);
  std::vector<Bytes> bytes, distances;
  for (const TensorId t : op.inputs) {
    bytes.push_back(t.valid() ? size(t) : 0);
    distances.push_back(t.valid() ? reuse_distance(size, id, t, far) : 0);
  }
  for (const TensorId t : op.outputs) {
    bytes.push_back(size(t));
    const bool kept = op.phase == Phase::kForward || op.is_dw;
    distances.push_back(kept ? far : 0);
  }
  std::vector<int64_t> counts;
  for (size_t i = 0; i < bytes.size(); ++i) {
    Bytes fresh = 0;  // bytes per call of operands that are not reused sooner than operand i
    for (size_t j = 0; j < bytes.size(); ++j) fresh += distances[j] >= distances[i] ? bytes[j] : 0;
    counts.push_back(bytes[i] == 0 ? 0 : std::max<int64_t>(1, distances[i] / fresh));
  }
  return counts;
}

ProfileOperands::ProfileOperands(const Graph& graph, OpId op, const WorkContext& context,
                                 Bytes element_bytes)
    : inputs_(graph.op(op).inputs.size()),
      outputs_(graph.op(op).outputs.size()),
      element_bytes_(element_bytes) {
  const OpDef& def = graph.def(op);
  if (def.scratch_bytes != nullptr) {
    scratch_ = Storage(def.scratch_bytes(graph, graph.op(op), sizeof(float)));
  }
  lay_out(graph, op);
  fill_inputs(graph, op, context);
  rotate_parts(graph, graph.op(op));
}

void ProfileOperands::rotate_parts(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  if (!op.rows.share || def.axes == nullptr || def.begins.size() != 1) return;
  const BeginInput& begin = def.begins[0];
  const auto b = static_cast<size_t>(begin.input), e = static_cast<size_t>(begin.of_input);
  const std::vector<AxisTuple> ways = def.axes(graph, op);
  const bool rows_in = !ways.empty() && ways[0].inputs[0] == kRows;
  if (!rows_in || b >= op.inputs.size() || !op.inputs[b].valid()) return;
  const Shape& x = graph.tensor(op.inputs[0]).shape;
  const auto* const ends = static_cast<const int32_t*>(static_cast<void*>(input_copies_[e].first));
  const std::vector<int32_t> rows(ends, ends + num_elements(graph.tensor(op.inputs[e]).shape));
  const int64_t most = *std::max_element(rows.begin(), rows.end());
  const auto parts = std::llround(1 / *op.rows.share);
  if (most == 0) return;
  rotation_ = PartRotation{b, e, rows,
                           std::max<int64_t>(1, std::min<int64_t>(parts, x[x.size() - 2] / most)),
                           std::max<int64_t>(1, output_copies_[0].count)};
}

void ProfileOperands::join(const Graph& graph, const Op& op) {
  const auto place_of = [](const std::vector<TensorId>& list, TensorId t) {
    return static_cast<size_t>(std::find(list.begin(), list.end(), t) - list.begin());
  };
  for (const Piece& p : pieces(graph, op)) {
    const size_t input = place_of(op.inputs, p.piece), output = place_of(op.outputs, p.whole);
    MOE_CHECK(
        input < op.inputs.size() && output < op.outputs.size(),
        "op '{}': the tensors that it joins must be its inputs, and the result must be an output",
        op.name);
    const Bytes each = dtype_bytes(graph.tensor(p.whole).dtype, element_bytes_);
    joined_.push_back({input, output, p.offset * each});
  }
}

void ProfileOperands::lay_out(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  join(graph, op);
  taken_over_.assign(op.outputs.size(), -1);
  for (const auto& [out, in] : dying_aliases(graph, id)) {
    if (taken_over_[static_cast<size_t>(out)] < 0) taken_over_[static_cast<size_t>(out)] = in;
  }
  std::vector<int64_t> counts = operand_copies(graph, id, element_bytes_);
  for (const Joined& joined : joined_) counts[joined.input] = 0;
  Bytes end = 0;
  std::vector<Bytes> offsets;
  const auto place = [&](TensorId t, int64_t count, std::vector<Copies>& copies) {
    const Bytes pitch = t.valid() ? padded(tensor_bytes(graph.tensor(t), element_bytes_)) : 0;
    copies.push_back({nullptr, pitch, count, scattering_stride(count)});
    offsets.push_back(end);
    end += pitch * count;
  };
  for (size_t i = 0; i < op.inputs.size(); ++i) place(op.inputs[i], counts[i], input_copies_);
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const int64_t count = taken_over_[i] >= 0 ? 0 : counts[op.inputs.size() + i];
    place(op.outputs[i], count, output_copies_);
  }
  operands_ = Storage(end);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    input_copies_[i].first = operands_.data() + offsets[i];
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    Copies& copies = output_copies_[i];
    copies.first = operands_.data() + offsets[op.inputs.size() + i];
    for (Bytes at = 0; at < copies.pitch * copies.count; at += kPageBytes) {
      copies.first[at] = std::byte{0};  // so that the page is mapped before calls are timed
    }
  }
}

void ProfileOperands::fill_inputs(const Graph& graph, OpId id, const WorkContext& context) {
  for (size_t i = 0; i < input_copies_.size(); ++i) {
    const Copies& copies = input_copies_[i];
    if (copies.count == 0) continue;
    fill({graph, element_bytes_}, id, i, context, copies.first);
    for (int64_t c = 1; c < copies.count; ++c) {
      std::memcpy(copies.at(c), copies.first, static_cast<size_t>(copies.pitch));
    }
  }
  for (const int in : taken_over_) {
    if (in < 0) continue;
    const Copies& copies = input_copies_[static_cast<size_t>(in)];
    Storage pristine(copies.pitch);
    std::memcpy(pristine.data(), copies.first, static_cast<size_t>(copies.pitch));
    overwritten_.push_back({static_cast<size_t>(in), std::move(pristine)});
  }
}

void ProfileOperands::next() {
  advance();
  for (const Overwritten& o : overwritten_) {
    std::memcpy(inputs_[o.input], o.pristine.data(), static_cast<size_t>(o.pristine.size()));
  }
}

void ProfileOperands::advance() {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i] = input_copies_[i].count > 0 ? input_copies_[i].at(call_) : nullptr;
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    outputs_[i] = taken_over_[i] >= 0 ? inputs_[static_cast<size_t>(taken_over_[i])]
                                      : output_copies_[i].at(call_);
  }
  for (const Joined& joined : joined_) {
    inputs_[joined.input] = static_cast<std::byte*>(outputs_[joined.output]) + joined.offset;
  }
  if (rotation_) {
    const auto part = static_cast<int32_t>(call_ / rotation_->calls_a_part % rotation_->num_parts);
    auto* const begins = static_cast<int32_t*>(inputs_[rotation_->begin]);
    auto* const ends = static_cast<int32_t*>(inputs_[rotation_->end]);
    for (size_t block = 0; block < rotation_->rows.size(); ++block) {
      begins[block] = part * rotation_->rows[block];
      ends[block] = (part + 1) * rotation_->rows[block];
    }
  }
  ++call_;
}

}  // namespace moe
