// The operands of one op for timing it alone, call after call, as a training step would hand them
// over: no zeros and no denormals, index maps of a balanced routing, and each operand as far away
// in the caches as its last use lies back in a step.
//
// Invariant: an operand that comes back in a step after D bytes of other traffic has D / F copies,
// taken in turn, where F is what a call touches of operands that come back no sooner. What the op
// before has just written has one copy, and so has a short-lived output, which takes a place just
// left; an output that is kept lies where nothing was for a whole step.
// Not here: threads and clocks (profiler.h).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/exec/buffers.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"

namespace moe {

class ProfileOperands {
 public:
  /// context: how many slots hold a token. element_bytes: of floats, 4 or 0 (dtype_bytes()). Memory
  /// is at most a few times kFarBytes beside one set of operands.
  ProfileOperands(const Graph& graph, OpId op, const WorkContext& context,
                  Bytes element_bytes = sizeof(float));

  /// The operands of the next call. What earlier calls wrote over is put back.
  void next();
  /// The same without putting back: for calls on copies of storage() elsewhere. Row ends that
  /// follow the parts of a cut are current here alone.
  void advance();
  /// By input and output of the op; null for an absent input.
  std::span<void* const> inputs() const { return inputs_; }
  std::span<void* const> outputs() const { return outputs_; }
  void* scratch() const { return scratch_.data(); }
  /// What inputs() and outputs() point into.
  std::span<const std::byte> storage() const {
    return {operands_.data(), static_cast<size_t>(operands_.size())};
  }

  /// So much traffic pushes a line out of what one core gets of the caches.
  static constexpr Bytes kFarBytes = 160 << 20;

 private:
  struct Copies {
    std::byte* first;
    Bytes pitch;
    int64_t count;
    int64_t stride;  // from one call's copy to the next's
    std::byte* at(int64_t call) const { return first + call * stride % count * pitch; }
  };
  struct Overwritten {
    size_t input;
    Storage pristine;
  };

  /// An input that lies inside an output.
  struct Joined {
    size_t input, output;
    Bytes offset;
  };

  /// Of one part of a cut along rows: calls take turns at the parts' rows, which all lie in one
  /// tensor, so that a call's rows are as cold as in a step.
  struct PartRotation {
    size_t begin, end;  // inputs
    int64_t num_row_ends, rows, num_parts, calls_a_part;
  };

  void join(const Graph& graph, const Op& op);
  void rotate_parts(const Graph& graph, const Op& op);
  void lay_out(const Graph& graph, OpId op);
  void fill_inputs(const Graph& graph, OpId op, const WorkContext& context);

  std::vector<Copies> input_copies_, output_copies_;  // first == null: absent
  std::vector<Joined> joined_;
  std::vector<int> taken_over_;  // by output: the input it lies on, -1 none
  std::vector<Overwritten> overwritten_;
  std::optional<PartRotation> rotation_;
  std::vector<void*> inputs_, outputs_;
  Bytes element_bytes_;
  Storage operands_{0}, scratch_{0};
  int64_t call_ = 0;
};

/// (output, input) pairs of the op that the plan lets share storage: the input has a producer and
/// no reader after the op.
std::vector<std::pair<int, int>> dying_aliases(const Graph& graph, OpId op);

/// How many copies each input and each output has, in this order; 0 for an absent input.
std::vector<int64_t> operand_copies(const Graph& graph, OpId op,
                                    Bytes element_bytes = sizeof(float));

}  // namespace moe
