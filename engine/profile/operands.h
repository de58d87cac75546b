// The operands of one op that is timed alone, call after call, in the state in which a training
// step would pass them: no zeros and no denormals, index maps of a balanced routing, and cache
// contents as in a step. Threads and clocks are not here but in profiler.h.
//
// Invariant: an operand that a step uses again after D bytes of other traffic is in D / F buffers
// ("copies"), which calls use in turn. F is the number of bytes that a call touches of operands
// that are not reused sooner. An input that the previous op has just written has one copy. So has a
// short-lived output, because a step would write it to memory that was just freed. An output that
// later ops need is written to memory that was not used for a whole step.
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
  /// `context`: how many slots hold a token. `element_bytes`: size of floating-point elements, 4 or
  /// 0 (see dtype_bytes()). Memory: at most a few times kFarBytes plus one set of operands.
  ProfileOperands(const Graph& graph, OpId op, const WorkContext& context,
                  Bytes element_bytes = sizeof(float));

  /// Switches to the operands of the next call, and restores inputs that earlier calls overwrote.
  void next();
  /// As next(), but restores nothing: for calls on a copy of storage() in other memory. Row ends of
  /// parts, which change between calls, are updated only here, not in such a copy.
  void advance();
  /// Pointers of the current call, indexed by input or output of the op; null for an absent input.
  std::span<void* const> inputs() const { return inputs_; }
  std::span<void* const> outputs() const { return outputs_; }
  void* scratch() const { return scratch_.data(); }
  /// The memory into which inputs() and outputs() point.
  std::span<const std::byte> storage() const {
    return {operands_.data(), static_cast<size_t>(operands_.size())};
  }

  /// After this many bytes of other memory traffic, data is no longer in any cache that a core
  /// uses: neither in its own levels nor in its share of the last level.
  static constexpr Bytes kFarBytes = 160 << 20;

 private:
  struct Copies {
    std::byte* first;
    Bytes pitch;
    int64_t count;
    int64_t stride;  // distance, in copies, from one call's copy to that of the next call
    std::byte* at(int64_t call) const { return first + call * stride % count * pitch; }
  };
  struct Overwritten {
    size_t input;
    Storage pristine;
  };

  /// An input that is inside the storage of an output.
  struct Joined {
    size_t input, output;
    Bytes offset;
  };

  /// For an op that is one part of a cut along rows. The rows of all parts are in one tensor; calls
  /// use the rows of one part after the other, so that they are as cold in the caches as in a step.
  struct PartRotation {
    size_t begin, end;          // the inputs that hold row begins and row ends
    std::vector<int32_t> rows;  // of a part, in each block
    int64_t num_parts, calls_a_part;
  };

  void join(const Graph& graph, const Op& op);
  void rotate_parts(const Graph& graph, const Op& op);
  void lay_out(const Graph& graph, OpId op);
  void fill_inputs(const Graph& graph, OpId op, const WorkContext& context);

  std::vector<Copies> input_copies_, output_copies_;  // count 0: absent, or in another's storage
  std::vector<Joined> joined_;
  std::vector<int> taken_over_;  // per output: the input whose storage it takes over, or -1
  std::vector<Overwritten> overwritten_;
  std::optional<PartRotation> rotation_;
  std::vector<void*> inputs_, outputs_;
  Bytes element_bytes_;
  Storage operands_{0}, scratch_{0};
  int64_t call_ = 0;
};

/// Returns the pairs (output, input) of the op that a plan may store in the same place: the op
/// allows it, the input is made in the step (no parameter, state or input of the program), and no
/// op reads the input later.
std::vector<std::pair<int, int>> dying_aliases(const Graph& graph, OpId op);

/// Returns the number of copies of each input, then of each output; 0 for an absent input.
std::vector<int64_t> operand_copies(const Graph& graph, OpId op,
                                    Bytes element_bytes = sizeof(float));

}  // namespace moe
