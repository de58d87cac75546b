// Blocks of the arena: which tensors use the same bytes in turn, and between which ops each block
// is in use. Only memory.cpp and memory_use.cpp use it.
#pragma once

#include <vector>

#include "engine/schedule/interference.h"
#include "engine/schedule/lifetime.h"
#include "engine/schedule/memory.h"

namespace moe {

/// Computes which ops must be over before the storage of a tensor is free, by HappensBefore.
struct Lifetimes {
  const Graph& graph;
  const HappensBefore& hb;
  const TensorUses& uses;

  /// Raises over[c], for each chain c (HappensBefore), to the number of ops of this chain that must
  /// be over before `t` is dead.
  void add_uses(TensorId t, std::vector<int32_t>& over) const;
  /// Whether op may overwrite its input t: t is written in the step and not persistent, op reads t
  /// once, and all other readers of t are over before op begins.
  bool dies_at(TensorId t, OpId op) const;
};

/// Blocks of the arena, sorted by chain and index of their first op, and the block of each tensor.
struct Blocks {
  std::vector<Block> list;
  std::vector<int32_t> of;  // index into list per tensor, -1 if the tensor is not in the arena
};
Blocks make_blocks(const Lifetimes& lifetimes, const MemoryPlan& plan);

/// Blocks that get the same offset: in a step of many micro-batches (schedule/unroll.h) each but
/// the first and the last uses the bytes of the one two before it, so that the blocks to compare
/// with each other are those of a few micro-batches.
struct SharedPlaces {
  std::vector<uint32_t> of;  // per block: the number of its place
  /// Blocks from which it follows which places interfere: those of the first four micro-batches and
  /// the last two, which have all kinds of micro-batches in a row; of no more micro-batches, all.
  std::vector<uint32_t> compared;
  /// Blocks that are in use until the step ends, but not from the first micro-batch on, such as the
  /// losses of the others; they are placed as if they were.
  std::vector<uint32_t> kept;
  size_t count = 0;
};
/// Returns a place of its own for each block where micro-batches differ in their blocks. Requires:
/// micro-batches run one after the other.
SharedPlaces shared_places(const Lifetimes& lifetimes, const Blocks& blocks);
/// Returns places for micro-batches in any order: a block gets that of one of the same tensor in
/// another micro-batch or layer which, in every timing, is free when the block is written. Layers
/// share places, since the chunks of a pipeline rank hold most micro-batches at different times.
SharedPlaces places_in_turn(const Lifetimes& lifetimes, const Blocks& blocks);

/// The first and the last op, as indices in the serial order, that need a block.
struct Life {
  size_t from, to;
};
std::vector<Life> serial_lives(const Lifetimes& lifetimes, const std::vector<Block>& blocks);

/// Returns, for each op of the serial order, the bytes of blocks that are in use at it.
std::vector<Bytes> alive_bytes(const std::vector<Block>& blocks, const std::vector<Life>& lives,
                               size_t num_ops);

/// Returns the index of each op in the serial order.
std::vector<size_t> places_of(const std::vector<OpId>& serial);

}  // namespace moe
