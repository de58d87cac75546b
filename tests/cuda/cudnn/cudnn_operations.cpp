// The tensors, operations and graphs that finished descriptors of the emulated cuDNN describe. Much
// that version 9.19 of the library lets pass when descriptors are finalized, for its engines to
// refuse or to get wrong, throws here; what it refuses is refused with its status.
#include <algorithm>

#include "tests/cuda/cudnn/cudnn_parts.h"

namespace emulation {
namespace {

cudnnStatus_t bad(const std::string& why) {
  return refuse(CUDNN_STATUS_BAD_PARAM, why);
}

std::string name_of(const Tensor& t) {
  return "tensor " + std::to_string(t.id);
}

const Tensor& tensor_of(const Descriptor& d, cudnnBackendAttributeName_t name) {
  return d.part(name).tensor;
}

/// How many tensors a pointwise mode reads; 0: it is none that is known.
size_t num_inputs(int mode) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_CMP_GE:
      return 2;
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_GEN_INDEX:
      return 1;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return 3;
    default:
      return 0;
  }
}

void check_pointwise_types(const Operation& op) {
  const auto has_type = [](const Tensor& t, cudnnDataType_t type) {
    if (t.type != type) forbid_cudnn(name_of(t) + " is of a type that the mode has not there");
  };
  for (size_t i = 0; i < op.in.size(); ++i)
    if (i == 2)
      has_type(op.in[i], CUDNN_DATA_BOOLEAN);
    else if (!op.in[i].is_number())
      forbid_cudnn(name_of(op.in[i]) + " is to be a number");
  if (op.mode == CUDNN_POINTWISE_CMP_GE)
    has_type(op.out, CUDNN_DATA_BOOLEAN);
  else if (op.mode == CUDNN_POINTWISE_GEN_INDEX)
    has_type(op.out, CUDNN_DATA_INT32);
  else if (!op.out.is_number())
    forbid_cudnn(name_of(op.out) + " is to be a number");
}

cudnnStatus_t check_pointwise(const Operation& op) {
  std::vector<int64_t> dims(op.in[0].dims.size(), 1);
  for (const Tensor& t : op.in) {
    if (t.dims.size() != dims.size() || t.dims.size() != op.out.dims.size())
      return bad(name_of(t) + " has another number of dims than the others");
    for (size_t i = 0; i < dims.size(); ++i) {
      if (t.dims[i] != 1 && dims[i] != 1 && t.dims[i] != dims[i])
        forbid_cudnn(name_of(t) + " does not fit those beside it");
      dims[i] = std::max(dims[i], t.dims[i]);
    }
  }
  if (op.out.dims != dims) forbid_cudnn(name_of(op.out) + " is not as large as what it is made of");
  const auto rank = static_cast<int64_t>(dims.size());
  if (op.mode == CUDNN_POINTWISE_GEN_INDEX && (op.axis < 0 || op.axis >= rank))
    return bad("an axis that the tensor has not");
  check_pointwise_types(op);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t read_pointwise(const Descriptor& d, Operation& op) {
  const Descriptor& pointwise = d.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  op.mode = pointwise.one<int>(CUDNN_ATTR_POINTWISE_MODE);
  op.axis = pointwise.one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1);
  constexpr cudnnBackendAttributeName_t kInputs[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                     CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                     CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
  for (size_t i = 0; i < 3; ++i) {
    const bool wanted = i < num_inputs(op.mode);
    if (wanted && !d.has(kInputs[i])) return bad("an operation without one of its inputs");
    if (!wanted && d.has(kInputs[i])) forbid_cudnn("an input that the mode does not read");
    if (wanted) op.in.push_back(tensor_of(d, kInputs[i]));
  }
  op.out = tensor_of(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  return check_pointwise(op);
}

cudnnStatus_t check_matmul(const Operation& op) {
  const Tensor &a = op.in[0], &b = op.in[1], &c = op.out;
  const size_t rank = a.dims.size();
  if (rank < 2 || b.dims.size() != rank || c.dims.size() != rank)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "a matmul of tensors of different numbers of dims");
  const auto rows = [&](const Tensor& t) { return t.dims[rank - 2]; };
  const auto cols = [&](const Tensor& t) { return t.dims[rank - 1]; };
  if (cols(a) != rows(b) || rows(a) != rows(c) || cols(b) != cols(c))
    return bad("a matmul of " + name_of(a) + " and " + name_of(b) + " that do not fit");
  for (size_t i = 0; i + 2 < rank; ++i) {
    if (a.dims[i] % b.dims[i] != 0 && b.dims[i] % a.dims[i] != 0)
      return bad("a matmul of different numbers of matrices");
    if ((a.dims[i] != b.dims[i] && a.dims[i] != 1 && b.dims[i] != 1) ||
        c.dims[i] != std::max(a.dims[i], b.dims[i]))
      forbid_cudnn("a matmul of different numbers of matrices");
  }
  const auto is_real = [](const Tensor& t) {
    return t.type == CUDNN_DATA_FLOAT || t.type == CUDNN_DATA_BFLOAT16;
  };
  if (a.type != b.type || !is_real(a) || !is_real(c))
    forbid_cudnn("a matmul of " + name_of(a) + " and " + name_of(b) + " of types that do not fit");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_reduction(const Operation& op) {
  const Tensor &x = op.in[0], &y = op.out;
  if (x.dims.size() != y.dims.size())
    return bad("a reduction to another number of dims than " + name_of(x) + " has");
  for (size_t i = 0; i < x.dims.size(); ++i) {
    if (x.dims[i] % y.dims[i] != 0) return bad(name_of(x) + " is not reduced to " + name_of(y));
    if (y.dims[i] != x.dims[i] && y.dims[i] != 1)
      forbid_cudnn(name_of(y) + " is neither as large as " + name_of(x) + " nor 1");
  }
  if (!x.is_number() || !y.is_number()) forbid_cudnn("a reduction of what is no number");
  return CUDNN_STATUS_SUCCESS;
}

/// An element of the output is that of the input at the same place of memory: so attention's graphs
/// transpose.
cudnnStatus_t check_reshape(const Operation& op) {
  const Tensor &x = op.in[0], &y = op.out;
  if (num_elements(x.dims) != num_elements(y.dims))
    return bad("a reshape of " + name_of(x) + " to another number of elements");
  std::vector<int64_t> from = places(x.dims, x.strides), to = places(y.dims, y.strides);
  std::sort(from.begin(), from.end());
  std::sort(to.begin(), to.end());
  if (from != to || std::adjacent_find(from.begin(), from.end()) != from.end())
    forbid_cudnn("a reshape of " + name_of(x) + " to other places of memory");
  if (x.is_number() != y.is_number()) forbid_cudnn("a reshape between numbers and what is none");
  return CUDNN_STATUS_SUCCESS;
}

bool is_known(int type) {
  return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_INT32 ||
         type == CUDNN_DATA_BOOLEAN;
}

cudnnStatus_t note_tensor(Program& program, const Tensor& t) {
  const auto [at, is_new] = program.tensors.try_emplace(t.id, t);
  return is_new || at->second == t ? CUDNN_STATUS_SUCCESS
                                   : bad("two tensors with the id " + std::to_string(t.id));
}

}  // namespace

cudnnStatus_t finish_tensor(Descriptor& d) {
  Tensor& t = d.tensor;
  const int type = d.one<int>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  if (!is_known(type))
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "type " + std::to_string(type));
  t = {static_cast<cudnnDataType_t>(type),
       d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
       d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES),
       d.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
       d.one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
       d.one<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL),
       d.one<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)};
  if (t.dims.size() != t.strides.size())
    return bad(name_of(t) + " has another number of dims than of strides");
  for (const auto* const all : {&t.dims, &t.strides})
    if (*std::min_element(all->begin(), all->end()) < 1)
      return bad(name_of(t) + " has dims or strides below 1");
  const auto bytes = static_cast<int64_t>(bytes_of(t.type));
  if (t.alignment < bytes || (t.alignment & (t.alignment - 1)) != 0)
    return bad(name_of(t) + " has an alignment that is no power of 2 or below its element");
  if (t.by_value && (t.is_virtual || num_elements(t.dims) != 1))
    return bad(name_of(t) + " goes by value, but is virtual or has several elements");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finish_math(Descriptor& d) {
  if (d.kind == CUDNN_BACKEND_POINTWISE_DESCRIPTOR) {
    const int mode = d.one<int>(CUDNN_ATTR_POINTWISE_MODE);
    const int type = d.one<int>(CUDNN_ATTR_POINTWISE_MATH_PREC);
    if (num_inputs(mode) == 0)
      return refuse(CUDNN_STATUS_NOT_SUPPORTED, "mode " + std::to_string(mode));
    // The library's own graphs compare in BOOLEAN and make all else in FLOAT.
    const bool compares = mode == CUDNN_POINTWISE_CMP_GE && type == CUDNN_DATA_BOOLEAN;
    if (type != CUDNN_DATA_FLOAT && !compares)
      return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "pointwise math not in float");
    return CUDNN_STATUS_SUCCESS;
  }
  const bool reduces = d.kind == CUDNN_BACKEND_REDUCTION_DESCRIPTOR;
  const int how = d.one<int>(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_REDUCE_TENSOR_ADD);
  if (how != CUDNN_REDUCE_TENSOR_ADD && how != CUDNN_REDUCE_TENSOR_MAX)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "reduction " + std::to_string(how));
  if (d.one<int>(reduces ? CUDNN_ATTR_REDUCTION_COMP_TYPE : CUDNN_ATTR_MATMUL_COMP_TYPE) !=
      CUDNN_DATA_FLOAT)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums not in float");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finish_operation(Descriptor& d) {
  Operation& op = d.operation;
  op = {};
  op.kind = d.kind;
  switch (d.kind) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      op.in = {tensor_of(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
               tensor_of(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC)};
      op.out = tensor_of(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
      return check_matmul(op);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      op.mode = d.part(CUDNN_ATTR_OPERATION_REDUCTION_DESC).one<int>(CUDNN_ATTR_REDUCTION_OPERATOR);
      op.in = {tensor_of(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC)};
      op.out = tensor_of(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
      return check_reduction(op);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      op.in = {tensor_of(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC)};
      op.out = tensor_of(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
      return check_reshape(op);
    default:
      return read_pointwise(d, op);
  }
}

cudnnStatus_t finish_graph(Descriptor& d) {
  const auto program = std::make_shared<Program>();
  std::set<int64_t> read;
  for (const Part& part : d.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).parts) {
    const Operation& op = part->operation;
    for (const Tensor& t : op.in) {
      if (const cudnnStatus_t status = note_tensor(*program, t)) return status;
      if (t.is_virtual && program->written.count(t.id) == 0)
        forbid_cudnn("virtual " + name_of(t) + " is read and nothing wrote it before");
      read.insert(t.id);
    }
    if (const cudnnStatus_t status = note_tensor(*program, op.out)) return status;
    if (op.out.by_value) forbid_cudnn(name_of(op.out) + " goes by value and is written");
    if (!program->written.insert(op.out.id).second)
      return bad(name_of(op.out) + " is written twice");
    if (read.count(op.out.id) == 1)
      forbid_cudnn(name_of(op.out) + " is read before or while it is written");
    program->operations.push_back(op);
  }
  d.program = program;
  return CUDNN_STATUS_SUCCESS;
}

int64_t num_elements(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (const int64_t dim : dims) n *= dim;
  return n;
}

std::vector<int64_t> places(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides) {
  std::vector<int64_t> all = {0};
  for (size_t i = 0; i < dims.size(); ++i) {
    std::vector<int64_t> next;
    next.reserve(all.size() * static_cast<size_t>(dims[i]));
    for (const int64_t begin : all)
      for (int64_t j = 0; j < dims[i]; ++j) next.push_back(begin + j * strides[i]);
    all = std::move(next);
  }
  return all;
}

}  // namespace emulation
