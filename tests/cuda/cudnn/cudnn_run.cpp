// Works a graph of the emulated cuDNN off: its operations in their order, each on dense copies of
// its tensors in double. Virtual tensors stay so; real ones are read from and written to where the
// caller has them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/bf16.h"
#include "tests/cuda/cudnn/cudnn_parts.h"

namespace emulation {
namespace {

using moe::kernels::Bf16;
using Dense = std::vector<double>;  // row-major

/// The nearest number of a type.
double rounded(cudnnDataType_t type, double v) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return static_cast<float>(v);
    case CUDNN_DATA_BFLOAT16:
      return to_float(moe::kernels::to_bf16(static_cast<float>(v)));
    case CUDNN_DATA_INT32: {
      using Limits = std::numeric_limits<int32_t>;
      return std::isnan(v) ? 0
                           : std::clamp<double>(std::nearbyint(v), Limits::min(), Limits::max());
    }
    default:
      return v != 0;
  }
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) strides[i] = stride;
  return strides;
}

/// Where in a dense tensor of `dims` each element of one of `of` is read; dims of 1 are repeated.
std::vector<int64_t> repeated(const std::vector<int64_t>& of, const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides = dense_strides(dims);
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] == 1) strides[i] = 0;
  return places(of, strides);
}

double at(const Dense& values, int64_t i) {
  return values[static_cast<size_t>(i)];
}

double pointwise(const Operation& op, double x, double b, double t) {
  switch (op.mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0 ? x : b;
    default:
      return x;
  }
}

Dense make_pointwise(const Operation& op, const std::vector<Dense>& in) {
  const std::vector<int64_t>& dims = op.out.dims;
  Dense y(static_cast<size_t>(num_elements(dims)));
  if (op.mode == CUDNN_POINTWISE_GEN_INDEX) {
    std::vector<int64_t> only_axis(dims.size(), 0);
    only_axis[static_cast<size_t>(op.axis)] = 1;
    const std::vector<int64_t> index = places(dims, only_axis);
    return {index.begin(), index.end()};
  }
  std::vector<std::vector<int64_t>> from;
  for (const Tensor& t : op.in) from.push_back(repeated(dims, t.dims));
  for (size_t i = 0; i < y.size(); ++i) {
    double v[3] = {};
    for (size_t j = 0; j < in.size(); ++j) v[j] = at(in[j], from[j][i]);
    y[i] = pointwise(op, v[0], v[1], v[2]);
  }
  return y;
}

Dense make_matmul(const Operation& op, const Dense& a, const Dense& b) {
  const auto batch_of = [](const Tensor& t) {
    return std::vector<int64_t>(t.dims.begin(), t.dims.end() - 2);
  };
  const std::vector<int64_t> batch = batch_of(op.out);
  const std::vector<int64_t> from_a = repeated(batch, batch_of(op.in[0])),
                             from_b = repeated(batch, batch_of(op.in[1]));
  const int64_t m = op.out.dims[batch.size()], n = op.out.dims.back(), k = op.in[0].dims.back();
  Dense c;
  for (size_t i = 0; i < from_a.size(); ++i)
    for (int64_t row = 0; row < m; ++row) {
      Dense sums(static_cast<size_t>(n));
      for (int64_t p = 0; p < k; ++p)
        for (int64_t col = 0; col < n; ++col)
          sums[static_cast<size_t>(col)] +=
              at(a, (from_a[i] * m + row) * k + p) * at(b, (from_b[i] * k + p) * n + col);
      c.insert(c.end(), sums.begin(), sums.end());
    }
  return c;
}

Dense make_reduction(const Operation& op, const Dense& x) {
  const bool adds = op.mode == CUDNN_REDUCE_TENSOR_ADD;
  Dense y(static_cast<size_t>(num_elements(op.out.dims)),
          adds ? 0 : -std::numeric_limits<double>::infinity());
  const std::vector<int64_t> to = repeated(op.in[0].dims, op.out.dims);
  for (size_t i = 0; i < x.size(); ++i) {
    double& result = y[static_cast<size_t>(to[i])];
    // A NaN stays: what reads memory that nobody wrote is to be seen.
    const bool has_nan = std::isnan(x[i]) || std::isnan(result);
    result = adds || has_nan ? result + x[i] : std::max(result, x[i]);
  }
  return y;
}

Dense make_reshape(const Operation& op, const Dense& x) {
  const auto by_place = [](const Tensor& t) {
    std::vector<std::pair<int64_t, size_t>> all;
    for (const int64_t place : places(t.dims, t.strides)) all.push_back({place, all.size()});
    std::sort(all.begin(), all.end());
    return all;
  };
  const auto from = by_place(op.in[0]), to = by_place(op.out);
  Dense y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[to[i].second] = x[from[i].second];
  return y;
}

Dense make(const Operation& op, const std::vector<Dense>& in) {
  switch (op.kind) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return make_matmul(op, in[0], in[1]);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return make_reduction(op, in[0]);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      return make_reshape(op, in[0]);
    default:
      return make_pointwise(op, in);
  }
}

Dense read_all(const Tensor& t, const void* from) {
  Dense values;
  for (const int64_t place : places(t.dims, t.strides))
    values.push_back(read_element(t.type, from, place));
  return values;
}

void write_all(const Tensor& t, const Dense& values, void* to) {
  const std::vector<int64_t> all = places(t.dims, t.strides);
  for (size_t i = 0; i < all.size(); ++i) write_element(t.type, to, all[i], values[i]);
}

}  // namespace

size_t bytes_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      return sizeof(Bf16);
    case CUDNN_DATA_BOOLEAN:
      return sizeof(bool);
    default:
      return sizeof(float);
  }
}

double read_element(cudnnDataType_t type, const void* from, int64_t place) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return static_cast<const float*>(from)[place];
    case CUDNN_DATA_BFLOAT16:
      return to_float(static_cast<const Bf16*>(from)[place]);
    case CUDNN_DATA_INT32:
      return static_cast<const int32_t*>(from)[place];
    default:
      return static_cast<const uint8_t*>(from)[place] != 0;
  }
}

void write_element(cudnnDataType_t type, void* to, int64_t place, double value) {
  const double v = rounded(type, value);
  switch (type) {
    case CUDNN_DATA_FLOAT:
      static_cast<float*>(to)[place] = static_cast<float>(v);
      break;
    case CUDNN_DATA_BFLOAT16:
      static_cast<Bf16*>(to)[place] = moe::kernels::to_bf16(static_cast<float>(v));
      break;
    case CUDNN_DATA_INT32:
      static_cast<int32_t*>(to)[place] = static_cast<int32_t>(v);
      break;
    default:
      static_cast<uint8_t*>(to)[place] = v != 0;
  }
}

void run_program(const Program& program, const Bindings& bindings) {
  std::map<int64_t, Dense> kept;
  const auto values_of = [&](const Tensor& t) -> Dense {
    if (t.is_virtual) return kept.at(t.id);
    if (t.by_value) return {bindings.values.at(t.id)};
    return read_all(t, bindings.pointers.at(t.id));
  };
  for (const Operation& op : program.operations) {
    std::vector<Dense> in;
    for (const Tensor& t : op.in) in.push_back(values_of(t));
    Dense out = make(op, in);
    for (double& v : out) v = rounded(op.out.type, v);
    if (op.out.is_virtual)
      kept[op.out.id] = std::move(out);
    else
      write_all(op.out, out, bindings.pointers.at(op.out.id));
  }
}

}  // namespace emulation
