#include "engine/exec/cpu/activation_exchange.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {

template <class T>
ActivationExchange<T>::ActivationExchange(const Graph& graph, OpId id,
                                          const CollectiveMemory& memory, void* scratch)
    : group_(group_of(graph, graph.op(id))),
      scatters_(graph.def(id).collective == Collective::kReduceScatter) {
  const Op& op = graph.op(id);
  for (size_t i = 0; graph.def(id).collective == Collective::kShift && i < op.inputs.size(); ++i) {
    const int64_t n = num_elements(graph.tensor(op.inputs[i]).shape);
    shifted_.push_back({static_cast<T*>(memory.data(op.inputs[i])),
                        static_cast<T*>(memory.data(op.outputs[i])),
                        n * static_cast<Bytes>(sizeof(T))});
    block_ += n;
  }
  if (!shifted_.empty()) return;
  const TensorId part = scatters_ ? op.outputs[0] : op.inputs[0];
  const TensorId whole = scatters_ ? op.inputs[0] : op.outputs[0];
  const Tensor& tensor = graph.tensor(part);
  MOE_CHECK(dtype_bytes(tensor.dtype, memory.element_bytes) == Bytes{sizeof(T)},
            "op {} moves tensor {} of type {}, but can move only floats of {} bytes", op.name,
            tensor.name, name_of(tensor.dtype), sizeof(T));
  part_ = static_cast<T*>(memory.data(part));
  whole_ = static_cast<T*>(memory.data(whole));
  block_ = num_elements(tensor.shape);
  for (int64_t i = 0; i < attr_int(op, "axis"); ++i) outer_ *= tensor.shape[static_cast<size_t>(i)];
  parts_ = op.attrs.contains("context") ? 2 : 1;
  message_ = outer_ == 1 && parts_ == 1 ? whole_ : static_cast<T*>(scratch);
}

template <class T>
template <class F>
void ActivationExchange<T>::each_run(F f) const {
  if (message_ == whole_) return;
  const int64_t run = block_ / (outer_ * parts_), all = group_.size * parts_;
  for (int64_t member = 0; member < group_.size; ++member) {
    for (int64_t i = 0; i < outer_ * parts_; ++i) {
      const int64_t place = i % parts_ == 0 ? member : all - 1 - member;
      f(whole_ + (i / parts_ * all + place) * run, message_ + member * block_ + i * run, run);
    }
  }
}

template <class T>
CommTimes ActivationExchange<T>::shift(Communicator& comm, const std::string& what,
                                       int64_t place) const {
  const int64_t tensors = static_cast<int64_t>(shifted_.size()), n = group_.size;
  const auto all = static_cast<size_t>(n * tensors);
  Pieces pieces = {.groups = tensors, .send_offset = std::vector<Bytes>(all)};
  pieces.send_bytes = pieces.receive_offset = pieces.receive_bytes = pieces.send_offset;
  const auto offset = [](const T* from, const T* to) {
    return static_cast<Bytes>(to - from) * static_cast<Bytes>(sizeof(T));
  };
  for (int64_t i = 0; i < tensors; ++i) {
    const Shifted& s = shifted_[static_cast<size_t>(i)];
    const auto next = static_cast<size_t>((place + 1) % n * tensors + i);
    const auto before = static_cast<size_t>((place + n - 1) % n * tensors + i);
    pieces.send_offset[next] = offset(shifted_[0].to_next, s.to_next);
    pieces.receive_offset[before] = offset(shifted_[0].from_before, s.from_before);
    pieces.send_bytes[next] = pieces.receive_bytes[before] = s.bytes;
  }
  return comm.all_to_all(what, shifted_[0].to_next, shifted_[0].from_before, pieces);
}

template <class T>
CommTimes ActivationExchange<T>::call(Communicator& all, const std::string& what) {
  Communicator& comm = all.group(group_);
  if (!shifted_.empty()) return shift(comm, what, group_.place(all.rank()));
  if (scatters_) {
    each_run([](const T* whole, T* message, int64_t n) { std::copy_n(whole, n, message); });
    return comm.reduce_scatter(what, message_, part_, block_);
  }
  const CommTimes times =
      comm.all_gather(what, part_, message_, block_ * static_cast<Bytes>(sizeof(T)));
  each_run([](T* whole, const T* message, int64_t n) { std::copy_n(message, n, whole); });
  return times;
}

template class ActivationExchange<float>;
template class ActivationExchange<double>;

}  // namespace moe
