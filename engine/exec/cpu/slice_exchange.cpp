#include "engine/exec/cpu/slice_exchange.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {

template <class T>
SliceExchange<T>::SliceExchange(const Graph& graph, OpId id, const CollectiveMemory& memory,
                                void* scratch, int64_t rank)
    : group_(group_of(graph, graph.op(id))),
      place_(group_.place(rank)),
      scatters_(graph.def(id).collective == Collective::kReduceScatter),
      message_(static_cast<T*>(scratch)) {
  const Op& op = graph.op(id);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Tensor& tensor = graph.tensor(op.inputs[i]);
    MOE_CHECK(dtype_bytes(tensor.dtype, memory.element_bytes) == Bytes{sizeof(T)},
              "op {} moves slices of tensor {} of type {}, but can move only floats of {} bytes",
              op.name, tensor.name, name_of(tensor.dtype), sizeof(T));
    T* const slice = scatters_ ? static_cast<T*>(memory.data(op.outputs[i])) : nullptr;
    parts_.push_back(
        {static_cast<T*>(memory.data(op.inputs[i])), slice, num_elements(tensor.shape)});
    block_ += group_.slice_length(parts_.back().n);
  }
}

template <class T>
ElementRange SliceExchange<T>::elements(int64_t chunk, int64_t num_chunks) const {
  return {block_ * chunk / num_chunks, block_ * (chunk + 1) / num_chunks};
}

/// Calls f(part, at, n, held, to) for the slice at `place` of each tensor with elements in `range`.
/// These are n elements: the first is element `at` of the slice and element `to` of the message.
/// The tensor has the first `held` of them.
template <class T>
template <class F>
void SliceExchange<T>::each_slice(int64_t place, ElementRange range, F f) const {
  int64_t begin = 0;
  for (const Part& part : parts_) {
    const int64_t length = group_.slice_length(part.n);
    const int64_t from = std::max(range.first, begin), to = std::min(range.last, begin + length);
    if (from < to) {
      const int64_t at = from - begin, has = group_.slice(part.n, place).n - at;
      f(part, at, to - from, std::clamp<int64_t>(has, 0, to - from),
        place * (range.last - range.first) + from - range.first);
    }
    begin += length;
  }
}

/// Copies the block at `place` from the tensors into the message.
template <class T>
void SliceExchange<T>::pack(int64_t place, ElementRange range) {
  each_slice(place, range, [&](const Part& p, int64_t at, int64_t n, int64_t held, int64_t to) {
    const T* const from = p.whole + group_.slice(p.n, place).first + at;
    std::fill_n(std::copy_n(from, held, message_ + to), n - held, T(0));
  });
}

/// Copies the block at `place` of the message to the tensors: to the slices of a reduce-scatter
/// with the padding, to the whole tensors of an all-gather without.
template <class T>
void SliceExchange<T>::unpack(int64_t place, ElementRange range) {
  each_slice(place, range, [&](const Part& p, int64_t at, int64_t n, int64_t held, int64_t from) {
    if (scatters_) {
      std::copy_n(message_ + from, n, p.slice + at);
    } else {
      std::copy_n(message_ + from, held, p.whole + group_.slice(p.n, place).first + at);
    }
  });
}

template <class T>
CommTimes SliceExchange<T>::call(Communicator& all, const std::string& what, ElementRange range) {
  Communicator& comm = all.group(group_);
  const int64_t n = range.last - range.first;
  T* const own = message_ + place_ * n;
  CommTimes times;
  if (scatters_) {
    for (int64_t p = 0; p < group_.size; ++p) pack(p, range);
    times = comm.reduce_scatter(what, message_, own, n);
    unpack(place_, range);
  } else {
    pack(place_, range);
    times = comm.all_gather(what, own, message_, n * static_cast<Bytes>(sizeof(T)));
    for (int64_t p = 0; p < group_.size; ++p) {
      if (p != place_) unpack(p, range);
    }
  }
  return times;
}

template class SliceExchange<float>;
template class SliceExchange<double>;

}  // namespace moe
