#include "engine/exec/results/rank_report.h"

#include <algorithm>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/base/packing.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

// Long enough for rank 0's message with the start time to reach all processes, and for their
// threads to wake.
constexpr Nanoseconds kStartDelay = 300'000;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<std::byte> placement_bytes(const PlacedLayer& layer, const RankBuffers& buffers) {
  return {static_cast<std::byte*>(buffers.at(layer.state)),
          static_cast<size_t>(Placement::code_size(layer.bounds)) * sizeof(int32_t)};
}

}  // namespace

void add_loss(const Graph& graph, OpId op, double loss, RankReport& report) {
  switch (const Loss kind = graph.def(op).loss; kind) {
    case Loss::kNone:
      break;
    case Loss::kModel:
      report.stats.loss += loss;
      break;
    case Loss::kMtp: {
      const auto depth = static_cast<size_t>(attr_int(graph.op(op), "depth", 1));
      report.mtp_losses.resize(std::max(report.mtp_losses.size(), depth));
      report.mtp_losses[depth - 1] += loss;
      break;
    }
    case Loss::kBalance:
    case Loss::kZ:
      report.router_losses.push_back({graph.op(op).layer, kind == Loss::kZ, loss});
      break;
  }
}

Peers::Peers(Processes& processes, const Plan& plan,
             const std::vector<PersistentTensors>& persistents, const RankBuffers& own,
             Bytes element_bytes)
    : processes_(processes),
      plan_(plan),
      persistents_(persistents),
      buffers_(static_cast<size_t>(processes.size())) {
  const std::vector<std::string> hashes = processes.gather("plan's hash", plan.hash);
  for (size_t r = 0; r < hashes.size(); ++r) {
    if (hashes[r] == plan.hash) continue;
    throw run_error(
        "rank {} has the plan with hash {}, but rank 0 has the plan with hash {}; give all ranks "
        "the same options",
        r, hashes[r], plan.hash);
  }
  agree(true);  // no rank continues before rank 0 has compared the hashes
  for (int64_t r = 0; processes.is_root() && r < processes.size(); ++r) {
    // Only the persistent tensors are ever written, so the system allocates no pages for the
    // others.
    copies_.push_back(r == 0 ? nullptr
                             : std::make_unique<RankBuffers>(plan.program(r), element_bytes));
    buffers_[static_cast<size_t>(r)] = copies_.back().get();
  }
  buffers_[static_cast<size_t>(processes.rank())] = &own;
  records_.resize(copies_.size());
}

Nanoseconds Peers::start() {
  processes_.gather("step", "");
  Packer packer;
  packer.put(processes_.to_common(clock_ns()) + kStartDelay);
  const std::string text = processes_.broadcast("step", packer.take());
  Nanoseconds start = 0;
  Unpacker(text).get(start);
  return processes_.from_common(start);
}

bool Peers::agree(bool go_on) {
  return agree(static_cast<int64_t>(go_on)) != 0;
}

int64_t Peers::agree(int64_t value) {
  Packer packer;
  packer.put(value);
  const std::string text = processes_.broadcast("rank 0's answer", packer.take());
  Unpacker(text).get(value);
  return value;
}

std::vector<RankReport> Peers::gather(RankReport own) {
  const std::string mine = processes_.is_root() ? std::string() : pack(own);
  const std::vector<std::string> texts = processes_.gather("reports", mine);
  std::vector<RankReport> reports;
  for (size_t r = 1; r < texts.size(); ++r) {
    reports.push_back(unpack(texts[r], static_cast<int64_t>(r)));
  }
  reports.insert(reports.begin(), std::move(own));
  return reports;
}

std::string Peers::pack(const RankReport& report) const {
  Packer packer;
  packer.put(report);
  for (const GateRecord* gate : report.gates) {
    packer.put(gate->code);
    packer.put(gate->expert);
    packer.put(gate->choice_slot);
    packer.put(gate->counts);
    packer.put(gate->margin);
  }
  const RankBuffers& own = *buffers_[static_cast<size_t>(processes_.rank())];
  for (const PlacedLayer& layer : placed(processes_.rank())) {
    const auto codes = placement_bytes(layer, own);
    packer.put_bytes(codes.data(), codes.size());
  }
  return packer.take();
}

RankReport Peers::unpack(const std::string& bytes, int64_t rank) {
  Unpacker unpacker(bytes);
  RankReport report;
  unpacker.get(report);
  const Plan& program = plan_.program(rank);
  std::vector<std::unique_ptr<GateRecord>>& records = records_[static_cast<size_t>(rank)];
  const bool fresh = records.empty();
  size_t next = 0;
  for (const OpId op : program.orders.lanes[0]) {
    if (program.graph.def(op).moe != MoeOp::kGate) continue;
    AssignmentCode code{};
    unpacker.get(code);
    if (fresh) records.push_back(std::make_unique<GateRecord>(program.graph, op, code));
    const auto& gate = records[next++];
    for (std::vector<int32_t>* list : {&gate->expert, &gate->choice_slot, &gate->counts}) {
      const size_t size = list->size();
      unpacker.get(*list);
      MOE_CHECK(list->size() == size,
                "a list of a gate record has {} entries in the report of rank {}, but must have {}",
                list->size(), rank, size);
    }
    unpacker.get(gate->margin);
    report.gates.push_back(gate.get());
  }
  for (const PlacedLayer& layer : placed(rank)) {
    const auto codes = placement_bytes(layer, *buffers_[static_cast<size_t>(rank)]);
    std::memcpy(codes.data(), unpacker.next(codes.size()).data(), codes.size());
  }
  return report;
}

void Peers::gather_persistent() {
  const RankBuffers& own = *buffers_[static_cast<size_t>(processes_.rank())];
  const std::vector<std::string> all = processes_.gather(
      "parameters", processes_.is_root() ? std::string() : text_of(own.persistent()));
  for (size_t r = 1; r < all.size(); ++r) {
    const auto to = buffers_[r]->persistent();
    MOE_CHECK(all[r].size() == to.size(),
              "{} bytes of parameters came from rank {}, but must be {}", all[r].size(), r,
              to.size());
    std::memcpy(to.data(), all[r].data(), to.size());
  }
}

void Peers::spread_persistent() {
  std::vector<std::string> all;
  for (size_t r = 0; processes_.is_root() && r < buffers_.size(); ++r) {
    all.push_back(r == 0 ? std::string() : text_of(buffers_[r]->persistent()));
  }
  const std::string own = processes_.scatter("parameters", all);
  if (processes_.is_root()) return;
  const auto to = buffers_[static_cast<size_t>(processes_.rank())]->persistent();
  MOE_CHECK(own.size() == to.size(), "{} bytes of parameters came from rank 0, but must be {}",
            own.size(), to.size());
  std::memcpy(to.data(), own.data(), own.size());
}

}  // namespace moe
