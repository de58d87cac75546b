// Runs a graph of one rank op by op in program order, every tensor in memory of its own that begins
// as NaN (or -1 for index tensors), so that an op which reads what nobody wrote is seen. With one
// rank, collectives are copies.
#pragma once

#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "engine/base/errors.h"
#include "engine/ops/kernel_call.h"
#include "engine/ops/ops.h"
#include "kernels/kernels.h"

namespace moe::test {

template <class T>
class Interpreter {
 public:
  explicit Interpreter(const Graph& graph) : graph_(graph), storage_(graph.tensors().size()) {
    MOE_CHECK(graph.num_ranks == 1);
    for (size_t t = 0; t < storage_.size(); ++t) {
      const auto n = static_cast<size_t>(num_elements(graph.tensors()[t].shape));
      storage_[t].resize(n * sizeof(double) + sizeof(double));
    }
    clear(true);
  }

  RankContext rank;

  T* real(TensorId t) { return reinterpret_cast<T*>(storage_[t.index()].data()); }
  int32_t* index(TensorId t) { return reinterpret_cast<int32_t*>(storage_[t.index()].data()); }
  double& scalar(TensorId t) { return *reinterpret_cast<double*>(storage_[t.index()].data()); }
  T* real(std::string_view name) { return real(find(name)); }
  int32_t* index(std::string_view name) { return index(find(name)); }
  int64_t size(TensorId t) const { return num_elements(graph_.tensor(t).shape); }
  std::vector<T> values(TensorId t) { return {real(t), real(t) + size(t)}; }

  TensorId find(std::string_view name) const {
    const TensorId t = graph_.find_tensor(name);
    MOE_CHECK(t.valid(), "no tensor {}", name);
    return t;
  }

  void run() {
    clear(false);
    for (const Op& op : graph_.ops()) {
      if (op.kind.valid()) run(op);
    }
  }

 private:
  static bool persistent(TensorKind kind) {
    return kind != TensorKind::kActivation && kind != TensorKind::kGradient;
  }

  void clear(bool all) {
    for (size_t t = 0; t < storage_.size(); ++t) {
      const Tensor& tensor = graph_.tensors()[t];
      if (!all && persistent(tensor.kind)) continue;
      const TensorId id(static_cast<int64_t>(t));
      for (int64_t i = 0; i < size(id); ++i) {
        if (tensor.dtype == DType::kI32) {
          index(id)[i] = -1;
        } else {
          real(id)[i] = std::numeric_limits<T>::quiet_NaN();
        }
      }
    }
  }

  void run(const Op& op) {
    std::vector<void*> inputs, outputs;
    for (const TensorId t : op.inputs)
      inputs.push_back(t.valid() ? storage_[t.index()].data() : nullptr);
    for (const TensorId t : op.outputs) outputs.push_back(storage_[t.index()].data());
    const OpDef& def = graph_.def(op);
    if (def.collective != Collective::kNone) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        std::memcpy(outputs[i], inputs[i], storage_[op.outputs[i].index()].size());
      }
      return;
    }
    std::vector<std::byte> scratch;
    if (def.scratch_bytes != nullptr) {
      scratch.resize(static_cast<size_t>(def.scratch_bytes(graph_, op, sizeof(T))));
    }
    const auto call = [&]<class U>(const kernels::KernelTable<U>& k) {
      return KernelCall<U>{graph_, op, inputs, outputs, scratch.data(), k, rank};
    };
    if constexpr (std::is_same_v<T, double>) {
      def.run.f64(call(kernels::reference_table()));
    } else {
      def.run.f32(call(kernels::fast_table()));
    }
  }

  const Graph& graph_;
  std::vector<std::vector<std::byte>> storage_;
};

}  // namespace moe::test
