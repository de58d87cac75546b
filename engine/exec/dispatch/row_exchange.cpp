#include "engine/exec/dispatch/row_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/cost/dispatch_cost.h"
#include "engine/graph/op_def.h"

namespace moe {

using dispatch::Choices;
using dispatch::Mover;

template <class T>
RowExchange<T>::RowExchange(const Plan& plan, OpId id, const CollectiveMemory& memory)
    : route_(plan.spec.dispatcher->route),
      ranks_per_node_(plan.spec.dispatcher->exchange.ranks_per_node) {
  const Graph& graph = plan.graph;
  const Op& op = graph.op(id);
  const TensorId choices = input_of(graph, op, Role::kChoiceSlot);
  MOE_CHECK(choices.valid(), "op {} under a dispatcher must have the input choice_slot", op.name);
  const Tensor& rows = graph.tensor(op.inputs[0]);
  hidden_ = rows.shape.back();
  row_bytes_ = hidden_ * dtype_bytes(rows.dtype, memory.element_bytes);
  const bool narrow = row_bytes_ < hidden_ * static_cast<int64_t>(sizeof(T));
  stored_ = narrow ? dispatch::Wire::kBf16 : dispatch::Wire::kFp32;
  to_expert_ = op.rows.to_expert();
  tokens_ = graph.tensor(choices).shape[0], topk_ = graph.tensor(choices).shape[1];
  choice_slot_ = memory.numbers(choices);
  weight_ = static_cast<const T*>(memory.data(input_of(graph, op, Role::kWeight)));
  const bool dots = op.outputs.size() > 1;
  results_ = dots ? static_cast<const std::byte*>(memory.data(op.inputs.back())) : nullptr;
  dots_ = dots ? static_cast<T*>(memory.data(op.outputs[1])) : nullptr;
}

template <class T>
struct RowExchange<T>::Known {
  Choices choices;                 // the rank of a choice's row; -1: it has none
  std::vector<T> weights;          // of all choices; empty: none
  std::vector<int64_t> at_expert;  // the row of a choice at this rank's experts
  int64_t own = 0;                 // the number of this rank's first choice
};

namespace {

/// Rows of the pieces of one side for a peer, by their numbers, in order.
std::vector<int64_t> rows_with(const std::vector<Bytes>& offset, const std::vector<Bytes>& bytes,
                               int64_t groups, int64_t peer, int64_t row_bytes) {
  std::vector<int64_t> rows;
  for (int64_t piece = peer * groups; piece < (peer + 1) * groups; ++piece) {
    const int64_t first = offset[index(piece)] / row_bytes;
    for (int64_t n = 0; n < bytes[index(piece)] / row_bytes; ++n) rows.push_back(first + n);
  }
  return rows;
}

}  // namespace

template <class T>
typename RowExchange<T>::Known RowExchange<T>::tell(Communicator& comm, const std::string& what,
                                                    const Pieces& pieces) const {
  const int64_t ranks = comm.size(), me = comm.rank(), n = tokens_ * topk_;
  const auto rows_at = [&](bool experts, int64_t peer) {
    const bool sent = experts != to_expert_;
    return rows_with(sent ? pieces.send_offset : pieces.receive_offset,
                     sent ? pieces.send_bytes : pieces.receive_bytes, pieces.groups, peer,
                     row_bytes_);
  };
  const int32_t most = *std::max_element(choice_slot_, choice_slot_ + n);
  std::vector<int32_t> choice_of(index(most + 1), -1);
  for (int64_t c = 0; c < n; ++c) {
    if (choice_slot_[c] >= 0) choice_of[index(choice_slot_[c])] = static_cast<int32_t>(c);
  }
  // Rows for each rank, then for each choice the number of its row among all, or -1.
  std::vector<int32_t> mine(index(ranks + n), -1), all(index(ranks * (ranks + n)));
  int32_t next = 0;
  for (int64_t peer = 0; peer < ranks; ++peer) {
    const std::vector<int64_t> rows = rows_at(false, peer);
    mine[index(peer)] = static_cast<int32_t>(rows.size());
    for (const int64_t row : rows) {
      const bool used = row <= most && choice_of[index(row)] >= 0;
      MOE_CHECK(used, "{}: row {} is exchanged, but no choice has it", what, row);
      mine[index(ranks + choice_of[index(row)])] = next++;
    }
  }
  const auto bytes = static_cast<Bytes>(mine.size() * sizeof(int32_t));
  comm.all_gather(what + " (choices)", mine.data(), all.data(), bytes);
  Known known{.choices = {{0}, std::vector<int32_t>(index(ranks * n), -1)},
              .at_expert = std::vector<int64_t>(index(ranks * n), -1),
              .own = me * n};
  for (int64_t r = 0; r < ranks; ++r) {
    known.choices.first.push_back((r + 1) * tokens_);
    const int32_t* const of = all.data() + r * (ranks + n);
    std::vector<int32_t> ends(index(ranks));
    std::partial_sum(of, of + ranks, ends.begin());
    const std::vector<int64_t> here = rows_at(true, r);
    for (int64_t c = 0; c < n; ++c) {
      const int32_t number = of[ranks + c];
      if (number < 0) continue;
      const auto to = std::upper_bound(ends.begin(), ends.end(), number) - ends.begin();
      known.choices.experts[index(r * n + c)] = static_cast<int32_t>(to);
      if (to != me) continue;
      known.at_expert[index(r * n + c)] = here[index(number - (ends[index(to)] - of[to]))];
    }
  }
  if (weight_ != nullptr) {
    known.weights.resize(index(ranks * n));
    comm.all_gather(what + " (weights)", weight_, known.weights.data(),
                    n * static_cast<Bytes>(sizeof(T)));
  }
  return known;
}

template <class T>
void RowExchange<T>::to_experts(Mover<T>& mover, const Known& known, const std::byte* from,
                                std::byte* to, std::vector<T>& dots) const {
  std::vector<T> row(index(hidden_)), result(index(hidden_));
  const auto own = [&](int64_t token, int32_t slot) {
    // An all-gather sends all tokens, those without a row as zeros.
    std::fill(row.begin(), row.end(), T{0});
    for (int64_t i = 0; i < topk_; ++i) {
      const int64_t c = token * topk_ + i;
      const bool served = route_.to_all ? known.choices.experts[index(c)] >= 0 : i == slot;
      if (!served) continue;
      decode(stored_, hidden_, from + choice_slot_[c - known.own] * row_bytes_, row.data());
      break;
    }
    return row.data();
  };
  mover.dispatch(own, [&](int64_t token, int32_t slot, const T* values) {
    for (int64_t i = 0; i < topk_; ++i) {
      const size_t c = index(token * topk_ + i);
      if (known.at_expert[c] < 0 || (!route_.to_all && i != slot)) continue;
      std::byte* const at = to + known.at_expert[c] * row_bytes_;
      if (dots_ != nullptr) {
        decode(stored_, hidden_, results_ + known.at_expert[c] * row_bytes_, result.data());
        dots[c] = std::inner_product(values, values + hidden_, result.begin(), T{0});
      }
      const T weight = known.weights.empty() ? T{1} : known.weights[c];
      std::transform(values, values + hidden_, result.begin(), [&](T v) { return weight * v; });
      encode(stored_, hidden_, result.data(), at);
    }
  });
}

template <class T>
void RowExchange<T>::to_sources(Mover<T>& mover, const Known& known, const std::byte* from,
                                std::byte* to) const {
  const auto make = [&](int64_t token, int32_t slot, T* values) {
    std::fill(values, values + hidden_, T{0});
    std::vector<T> row(index(hidden_));
    for (int64_t i = 0; i < topk_; ++i) {
      const size_t c = index(token * topk_ + i);
      if (known.at_expert[c] < 0 || (!route_.to_all && i != slot)) continue;
      decode(stored_, hidden_, from + known.at_expert[c] * row_bytes_, row.data());
      const T weight = known.weights.empty() ? T{1} : known.weights[c];
      for (int64_t h = 0; h < hidden_; ++h) values[h] += weight * row[index(h)];
    }
  };
  const bool sums = route_.adds();
  std::vector<T> of_tokens(index(sums ? tokens_ * hidden_ : 0));
  const auto at = [&](int64_t choice) { return to + choice_slot_[choice] * row_bytes_; };
  const auto sum = dispatch::sums_of<T>(of_tokens, known.own / topk_, hidden_);
  mover.combine(make, [&](int64_t token, std::span<const int32_t> slots, const T* values) {
    if (sums) return sum(token, slots, values);
    encode(stored_, hidden_, values, at(token * topk_ + slots[0] - known.own));
  });
  const std::vector<T> zeros(index(hidden_));
  for (int64_t t = 0; sums && t < tokens_; ++t) {
    const T* values = of_tokens.data() + t * hidden_;
    for (int64_t c = t * topk_; c < (t + 1) * topk_; ++c) {
      if (known.choices.experts[index(known.own + c)] < 0) continue;
      encode(stored_, hidden_, values, at(c));
      values = zeros.data();
    }
  }
}

template <class T>
typename RowExchange<T>::Done RowExchange<T>::call(Communicator& comm, const std::string& what,
                                                   const std::byte* send, std::byte* receive,
                                                   const Pieces& pieces, bool first) {
  const Known known = tell(comm, what, pieces);
  const dispatch::Exchange sizes{.ranks = comm.size(),
                                 .ranks_per_node = ranks_per_node_,
                                 .experts = comm.size(),  // a rank stands for all of its experts
                                 .topk = topk_,
                                 .hidden = hidden_};
  Mover<T> mover(route_, sizes, known.choices, comm, what);
  const auto way = to_expert_ ? dispatch::Way::kDispatch : dispatch::Way::kCombine;
  if (to_expert_) {
    std::vector<T> dots(dots_ != nullptr ? known.at_expert.size() : 0);
    to_experts(mover, known, send, receive, dots);
    if (dots_ != nullptr) {
      // Each product is known at one rank, and zero at all others.
      std::vector<T> own(index(tokens_ * topk_));
      comm.reduce_scatter(what + " (gradients of weights)", dots.data(), own.data(),
                          tokens_ * topk_);
      if (first) std::fill(dots_, dots_ + own.size(), T{0});
      std::transform(own.begin(), own.end(), dots_, dots_, std::plus<>());
    }
  } else {
    to_sources(mover, known, send, receive);
  }
  const std::vector<int64_t>& sent = mover.sent(way);
  return {mover.times(), std::accumulate(sent.begin(), sent.end(), Bytes{0})};
}

template class RowExchange<float>;
template class RowExchange<double>;

}  // namespace moe
