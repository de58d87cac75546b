#include "engine/graph/joined.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// A union-find of tensors; behind_ is how many elements after its parent's begin a tensor begins.
class Places {
 public:
  explicit Places(size_t num_tensors) : parent_(num_tensors), behind_(num_tensors) {
    for (size_t t = 0; t < num_tensors; ++t) parent_[t] = t;
  }

  struct Place {
    size_t root;
    int64_t offset;  // from the root's first element
  };

  Place find(size_t t) {
    Place place{t, 0};
    for (; parent_[place.root] != place.root; place.root = parent_[place.root]) {
      place.offset += behind_[place.root];
    }
    int64_t left = place.offset;
    for (size_t at = t; parent_[at] != at;) {  // path compression
      const size_t next = parent_[at];
      const int64_t step = behind_[at];
      parent_[at] = place.root;
      behind_[at] = left;
      left -= step;
      at = next;
    }
    return place;
  }

  /// Records that b begins `distance` elements after a, unless their distance is recorded already.
  /// Returns the recorded distance.
  int64_t join(size_t a, size_t b, int64_t distance) {
    const Place x = find(a), y = find(b);
    if (x.root == y.root) return y.offset - x.offset;
    parent_[y.root] = x.root;
    behind_[y.root] = x.offset + distance - y.offset;
    return distance;
  }

 private:
  std::vector<size_t> parent_;
  std::vector<int64_t> behind_;
};

bool is_source(const Tensor& tensor) {
  return tensor.kind == TensorKind::kInput || tensor.kind == TensorKind::kParam ||
         tensor.kind == TensorKind::kState;
}

/// The rules of check_joined(), except that a tensor has one place, which JoinedTensors checks.
class Checker {
 public:
  explicit Checker(const Graph& graph)
      : graph_(graph), producer_(graph.producers()), joined_(graph) {
    for (const OpId id : graph.op_ids()) look_at(id);
  }

  /// Throws UserError where an op overwrites a Piece::whole, because dependencies() does not order
  /// the readers of its pieces before that op. A piece may be overwritten: dependencies() orders
  /// the readers of its whole before that op.
  void check_overwritten() const {
    for (const auto& [t, op] : overwritten_) {
      if (!wholes_.contains(t)) continue;
      throw user_error(
          "op '{}' overwrites tensor '{}', whose storage contains other tensors; this is not "
          "allowed",
          graph_.op(op).name, graph_.tensor(t).name);
    }
  }

  void check_overlaps() const {
    for (const JoinedTensors::Group& group : joined_.groups) {
      std::vector<TensorId> written;
      std::copy_if(group.members.begin(), group.members.end(), std::back_inserter(written),
                   [this](TensorId t) { return has_values_of_its_own(t); });
      std::stable_sort(written.begin(), written.end(),
                       [this](TensorId a, TensorId b) { return begin(a) < begin(b); });
      for (size_t i = 0; i < written.size(); ++i) {
        for (size_t j = i + 1; j < written.size() && begin(written[j]) < end(written[i]); ++j) {
          const bool allowed =
              rows_of_one_op(written[i], written[j]) || copies_in_turn(written[i], written[j]);
          if (!allowed) fail(written[i], written[j]);
        }
      }
    }
  }

 private:
  void look_at(OpId id) {
    const Op& op = graph_.op(id);
    for (const Piece& piece : pieces(graph_, op)) {
      joined_by_[piece.piece] = joined_by_[piece.whole] = id;
      wholes_.insert(piece.whole);
      if (!piece.end.valid()) continue;
      const Tensor& tensor = graph_.tensor(piece.piece);
      if (is_source(tensor)) {
        throw user_error(
            "op '{}' joins rows of tensor '{}' of kind {}, and would clear its unused rows; "
            "allowed are activations and gradients",
            op.name, tensor.name, name_of(tensor.kind));
      }
      rows_[piece.piece].emplace_back(piece.whole, piece.cut);
      if (rows_[piece.whole].empty()) rows_[piece.whole].emplace_back(piece.whole, piece.cut);
    }
    for (const int m : mutated_inputs(graph_, op)) {
      overwritten_[op.inputs[static_cast<size_t>(m)]] = id;
    }
  }

  /// Whether the tensor itself is written: it is an input, parameter or state, or an output of an
  /// op that is no view.
  bool has_values_of_its_own(TensorId t) const {
    const OpId maker = producer_[t.index()];
    return maker.valid() ? !is_view(graph_, graph_.op(maker)) : is_source(graph_.tensor(t));
  }

  int64_t begin(TensorId t) const { return joined_.offset[t.index()]; }
  int64_t end(TensorId t) const { return begin(t) + stored_elements(graph_.tensor(t)); }

  /// Whether both are copies of experts in the same slots, which check_slots (schedule/slots.h)
  /// allows only in turn.
  bool copies_in_turn(TensorId a, TensorId b) const {
    const auto copied = [&](TensorId t) {
      return producer_[t.index()].valid() &&
             carries(graph_, producer_[t.index()], Payload::kShadows);
    };
    return copied(a) && copied(b) && begin(a) == begin(b) && end(a) == end(b);
  }

  /// Whether one op joins rows of both. Parts of the batch may be in parts along the rows in use,
  /// or these in them, but not parts of the batch in each other.
  bool rows_of_one_op(TensorId a, TensorId b) const {
    const std::set<TensorId> x = wholes_of(a), y = wholes_of(b);
    return std::any_of(x.begin(), x.end(), [&](TensorId t) { return y.contains(t); });
  }

  std::set<TensorId> wholes_of(TensorId t) const {
    std::set<TensorId> found;
    std::vector<std::pair<TensorId, bool>> open{{t, false}};  // whether it is a part of the batch
    while (!open.empty()) {
      const auto [piece, in_batch] = open.back();
      open.pop_back();
      const auto at = rows_.find(piece);
      if (at == rows_.end()) continue;
      for (const auto& [whole, cut] : at->second) {
        if (in_batch && !cut && whole != piece) continue;
        if (found.insert(whole).second) open.emplace_back(whole, in_batch || !cut);
      }
    }
    return found;
  }

  [[noreturn]] void fail(TensorId a, TensorId b) const {
    throw user_error(
        "op '{}' places tensor '{}' on elements of the storage where tensor '{}' has other values",
        graph_.op(joined_by_.at(b)).name, graph_.tensor(b).name, graph_.tensor(a).name);
  }

  const Graph& graph_;
  std::vector<OpId> producer_;
  JoinedTensors joined_;
  std::map<TensorId, OpId> joined_by_;    // the last op that joins the tensor to another
  std::map<TensorId, OpId> overwritten_;  // the op that overwrites the tensor
  std::set<TensorId> wholes_;
  /// The wholes that contain a piece with rows of a part (Piece::end), with Piece::cut, indexed by
  /// the piece; and each such whole, indexed by itself.
  std::map<TensorId, std::vector<std::pair<TensorId, bool>>> rows_;
};

}  // namespace

JoinedTensors::JoinedTensors(const Graph& graph)
    : group_of(graph.tensors().size(), -1), offset(graph.tensors().size()) {
  Places places(graph.tensors().size());
  std::vector<TensorId> joined;
  for (const Op& op : graph.ops()) {
    if (!op.kind.valid()) continue;
    for (const Piece& p : pieces(graph, op)) {
      const int64_t lies = places.join(p.whole.index(), p.piece.index(), p.offset);
      if (lies != p.offset) {
        throw user_error(
            "op '{}' needs tensor '{}' at element {} of '{}', but it is already joined at element "
            "{}",
            op.name, graph.tensor(p.piece).name, p.offset, graph.tensor(p.whole).name, lies);
      }
      joined.insert(joined.end(), {p.piece, p.whole});
    }
  }
  std::sort(joined.begin(), joined.end());
  joined.erase(std::unique(joined.begin(), joined.end()), joined.end());
  std::map<size_t, int32_t> group_of_root;
  for (const TensorId t : joined) {
    const Places::Place place = places.find(t.index());
    const auto next = static_cast<int32_t>(groups.size());
    const auto [found, is_new] = group_of_root.try_emplace(place.root, next);
    if (is_new) groups.emplace_back();
    group_of[t.index()] = found->second;
    offset[t.index()] = place.offset;
    groups[static_cast<size_t>(found->second)].members.push_back(t);
  }
  for (Group& group : groups) {
    int64_t begin = offset[group.members[0].index()], end = begin;
    for (const TensorId t : group.members) {
      begin = std::min(begin, offset[t.index()]);
      end = std::max(end, offset[t.index()] + stored_elements(graph.tensor(t)));
    }
    for (const TensorId t : group.members) offset[t.index()] -= begin;
    group.num_elements = end - begin;
  }
}

void check_joined(const Graph& graph) {
  const Checker checker(graph);
  checker.check_overwritten();
  checker.check_overlaps();
}

}  // namespace moe
