#include "engine/exec/buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/base/errors.h"

namespace moe {
namespace {

constexpr Bytes kHugePage = 2 << 20;

Bytes round_up(Bytes bytes, Bytes to) {
  return (bytes + to - 1) / to * to;
}

/// Returns the offset of each lane's scratch area, and the size of all of them as the last entry.
std::vector<Bytes> scratch_offsets(const Plan& plan, Bytes element_bytes) {
  std::vector<Bytes> offsets = {0};
  for (const auto& lane : plan.orders.lanes) {
    Bytes largest = 0;
    for (const OpId id : lane) {
      const OpDef& def = plan.graph.def(id);
      if (def.scratch_bytes == nullptr) continue;
      largest = std::max(largest, def.scratch_bytes(plan.graph, plan.graph.op(id), element_bytes));
    }
    offsets.push_back(offsets.back() + round_up(largest, kAlignment));
  }
  return offsets;
}

std::set<TensorId> distinct_inputs(const Op& op) {
  std::set<TensorId> inputs(op.inputs.begin(), op.inputs.end());
  inputs.erase(TensorId());
  return inputs;
}

}  // namespace

Storage::Storage(Bytes bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const Bytes alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  const auto size = static_cast<size_t>(round_up(bytes, alignment));
  void* p = std::aligned_alloc(static_cast<size_t>(alignment), size);
  if (p == nullptr)
    throw run_error("host memory: the system cannot allocate {} bytes for tensors", bytes);
  data_.reset(static_cast<std::byte*>(p));
  // Huge pages cause fewer TLB misses; if the operating system refuses them, only speed is lost.
  if (alignment == kHugePage) madvise(p, size, MADV_HUGEPAGE);
}

void Storage::Free::operator()(std::byte* p) const {
  std::free(p);
}

Bytes tensor_bytes(const Tensor& tensor, Bytes element_bytes) {
  return stored_elements(tensor) * dtype_bytes(tensor.dtype, element_bytes);
}

RankBuffers::RankBuffers(const Plan& plan, Bytes element_bytes)
    : plan_(plan),
      scratch_offset_(scratch_offsets(plan, element_bytes)),
      arena_(plan.memory.arena_bytes),
      persistent_(plan.memory.persistent_bytes),
      scratch_(scratch_offset_.back()) {
  for (size_t t = 0; t < plan.graph.tensors().size(); ++t) {
    const Tensor& tensor = plan.graph.tensors()[t];
    const Buffer& buffer = plan.memory.buffers[t];
    const Bytes needed = tensor_bytes(tensor, element_bytes);
    if (buffer.bytes < needed) {
      throw user_error(
          "the plan reserves {} bytes for tensor {}, but with floats of {} bytes the tensor needs "
          "{}: make the plan with element_bytes = {}",
          buffer.bytes, tensor.name, element_bytes, needed, element_bytes);
    }
    const Storage& in = buffer.persistent ? persistent_ : arena_;
    MOE_CHECK(buffer.offset >= 0 && buffer.offset + needed <= in.size(),
              "tensor {} of {} bytes at offset {} must be inside its storage of {} bytes",
              tensor.name, needed, buffer.offset, in.size());
  }
}

void* RankBuffers::at(TensorId tensor) const {
  if (!tensor.valid()) return nullptr;
  const Buffer& buffer = plan_.memory.buffers[tensor.index()];
  return (buffer.persistent ? persistent_ : arena_).data() + buffer.offset;
}

void RankBuffers::touch() {
  if (arena_.size() > 0) std::memset(arena_.data(), 0, static_cast<size_t>(arena_.size()));
  if (scratch_.size() > 0) std::memset(scratch_.data(), 0, static_cast<size_t>(scratch_.size()));
}

Poison::Poison(const Plan& plan, const RankBuffers& buffers, Bytes element_bytes)
    : plan_(plan),
      buffers_(buffers),
      element_bytes_(element_bytes),
      num_readers_(plan.graph.tensors().size(), 0),
      readers_left_(plan.graph.tensors().size()),
      num_users_(plan.memory.joined.size(), 0),
      users_left_(plan.memory.joined.size()) {
  for (const Op& op : plan.graph.ops()) {
    for (const TensorId t : distinct_inputs(op)) ++num_readers_[t.index()];
    for (const size_t block : joined_blocks(op)) ++num_users_[block];
  }
  for (size_t t = 0; t < num_readers_.size(); ++t) {
    const Buffer& buffer = plan.memory.buffers[t];
    if (buffer.persistent || buffer.joined >= 0) num_readers_[t] = -1;
    if (buffer.alias_of.valid()) num_readers_[buffer.alias_of.index()] = -1;  // used as t
  }
}

std::set<size_t> Poison::joined_blocks(const Op& op) const {
  std::set<size_t> blocks;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (const TensorId t : *list) {
      if (!t.valid()) continue;
      const Buffer& buffer = plan_.memory.buffers[t.index()];
      if (buffer.joined >= 0 && !buffer.persistent) {
        blocks.insert(static_cast<size_t>(buffer.joined));
      }
    }
  }
  return blocks;
}

void Poison::start_step() {
  for (size_t t = 0; t < num_readers_.size(); ++t) readers_left_[t] = num_readers_[t];
  for (size_t b = 0; b < num_users_.size(); ++b) users_left_[b] = num_users_[b];
}

void Poison::before(OpId op) {
  for (const TensorId t : plan_.graph.op(op).outputs) {
    const Buffer& buffer = plan_.memory.buffers[t.index()];
    if (!buffer.persistent && !buffer.alias_of.valid() && buffer.joined < 0) fill(t);
  }
  for (size_t b = 0; b < num_users_.size(); ++b) {
    if (plan_.memory.joined[b].start == op) fill_joined(b);
  }
}

void Poison::after(OpId op) {
  for (const TensorId t : distinct_inputs(plan_.graph.op(op))) {
    if (num_readers_[t.index()] >= 0 && readers_left_[t.index()].fetch_sub(1) == 1) fill(t);
  }
  for (const TensorId t : plan_.graph.op(op).outputs) {
    if (num_readers_[t.index()] == 0) fill(t);
  }
  for (const size_t b : joined_blocks(plan_.graph.op(op))) {
    if (users_left_[b].fetch_sub(1) == 1) fill_joined(b);
  }
}

void Poison::fill(TensorId t) {
  // Bytes of 0xFF are a NaN in float and in double. In an index tensor they would be -1, which is a
  // valid value and means "none".
  const Tensor& tensor = plan_.graph.tensor(t);
  const int pattern = tensor.dtype == DType::kI32 ? 0x80 : 0xFF;
  std::memset(buffers_.at(t), pattern, static_cast<size_t>(tensor_bytes(tensor, element_bytes_)));
}

void Poison::fill_joined(size_t block) {
  for (const TensorId t : plan_.memory.joined[block].members) fill(t);
}

}  // namespace moe
